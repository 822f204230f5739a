// TLS servers that are not ours, with the library that has their session tickets name them.
package world

import (
	_ "embed"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"text/template"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/session"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// ticketGroup is that of Apache's workers, which give up root.
const ticketGroup = "www-data"

// Page is where nginx has a page for browsers, which makes connections of its own.
const Page = "/page"

// page is it. It has loaded when it has made them, and shows what it was answered.
//
//go:embed page.html
var page []byte

// served is what a program of a server is to serve, and where.
type served struct {
	Dir, Name, Header, Address, Port, Certificate, Page string
}

// software is a program that speaks TLS: its configuration, and its arguments in front of the file of that.
type software struct {
	arguments     []string
	configuration *template.Template
}

func configuration(name, text string) *template.Template {
	return template.Must(template.New(name).Parse(text))
}

// curl takes no tickets with TLS 1.2: there must be a cache of sessions, whose ids name the server.
var allSoftware = map[string]software{
	"nginx": {[]string{"-c"}, configuration("nginx", `
daemon off;
master_process off;
user root;
pid {{.Dir}}/pid;
error_log {{.Dir}}/error.log warn;
events { worker_connections 4096; }
http {
  access_log off;
  keepalive_requests 100000;`+nginxFolders+`
  server {
    listen {{.Address}}:{{.Port}} ssl;
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_session_cache shared:tls:4m;
    ssl_certificate {{.Certificate}}.crt;
    ssl_certificate_key {{.Certificate}}.key;
    add_header {{.Header}} "{{.Name}} $ssl_session_reused $remote_port";
    location / { return 200 "{{.Name}}\n"; }
    location = /once { keepalive_timeout 0; return 200 "{{.Name}}\n"; }
    location = {{.Page}} { keepalive_timeout 0; default_type text/html; alias {{.Dir}}/page.html; }
    location = /slow { keepalive_timeout 0; limit_rate 1000; alias {{.Dir}}/page.html; }
  }
}
`)},
	"apache2": {[]string{"-DFOREGROUND", "-f"}, configuration("apache2", `
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule headers_module /usr/lib/apache2/modules/mod_headers.so
LoadModule dir_module /usr/lib/apache2/modules/mod_dir.so
LoadModule socache_shmcb_module /usr/lib/apache2/modules/mod_socache_shmcb.so
LoadModule ssl_module /usr/lib/apache2/modules/mod_ssl.so
User `+ticketGroup+`
Group `+ticketGroup+`
ServerRoot {{.Dir}}
DocumentRoot {{.Dir}}/root
PidFile {{.Dir}}/pid
ErrorLog {{.Dir}}/error.log
Mutex posixsem
StartServers 1
MaxKeepAliveRequests 0
KeepAliveTimeout 60
ServerName lab
Listen {{.Address}}:{{.Port}}
SSLSessionCache shmcb:{{.Dir}}/sessions(512000)
SSLEngine on
SSLCertificateFile {{.Certificate}}.crt
SSLCertificateKeyFile {{.Certificate}}.key
Header always set {{.Header}} "expr={{.Name}} %{SSL_SESSION_RESUMED} %{REMOTE_PORT}"
`)},
	"haproxy": {[]string{"-db", "-f"}, configuration("haproxy", `
global
  nbthread 1
defaults
  mode http
  timeout client 1m
  timeout server 1m
  timeout connect 1m
frontend web
  bind {{.Address}}:{{.Port}} ssl crt {{.Certificate}}.pem
  http-request return status 200 hdr {{.Header}} "{{.Name}} %[ssl_fc_is_resumed] %[src_port]"
`)},
	// a process for each connection, which reads the file as root
	"dovecot": {[]string{"-F", "-c"}, configuration("dovecot", `
base_dir = {{.Dir}}/run
state_dir = {{.Dir}}/state
log_path = {{.Dir}}/error.log
protocols = imap
listen = {{.Address}}
login_greeting = {{.Name}}
import_environment = LD_PRELOAD BALLAST_TICKETS
ssl = required
ssl_cert = <{{.Certificate}}.crt
ssl_key = <{{.Certificate}}.key
passdb {
  driver = static
}
service imap-login {
  process_limit = 300
  inet_listener imap {
    port = 0
  }
  inet_listener imaps {
    port = {{.Port}}
    ssl = yes
  }
}
`)},
}

// FindSoftware tells whether the programs are there, and the library that they preload.
func (l *Options) FindSoftware(programs ...string) error {
	for _, program := range programs {
		if _, err := findProgram(program); err != nil {
			return err
		}
	}
	_, err := os.Stat(l.ticketLibrary())
	if err != nil {
		return fmt.Errorf("find the library that servers preload: %w: `make build` makes it", err)
	}
	return nil
}

// findProgram also looks where users have no programs.
func findProgram(name string) (string, error) {
	for _, path := range []string{name, "/usr/sbin/" + name} {
		if found, err := exec.LookPath(path); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("find %s: it is not installed", name)
}

func (l *Options) ticketLibrary() string {
	return filepath.Join(filepath.Dir(l.Binary), "ballast-ticket.so")
}

// StartSoftware starts a program for a service on every server. Its session tickets are by the file of the server's agent as soon as that is there.
func (t *Trial) StartSoftware(program string, one *fleet.Service, certificate string) {
	address := one.VIP.String()
	if one.VIP.Is6() {
		address = "[" + address + "]"
	}
	var started []*Process
	for i := range t.Topology.Servers {
		node := ServerName(i + 1)
		what := served{Dir: filepath.Join(t.NodeDir(node), program+"-tls"), Name: node, Header: session.Header, Address: address,
			Port: strconv.Itoa(int(one.Ports[0])), Certificate: certificate, Page: Page}
		script.Checkf(os.MkdirAll(filepath.Join(what.Dir, "root"), 0o755), "configure %s", program)
		script.Checkf(os.WriteFile(filepath.Join(what.Dir, "root", "index.html"), nil, 0o644), "configure %s", program)
		script.Checkf(os.WriteFile(filepath.Join(what.Dir, "page.html"), page, 0o644), "configure %s", program)
		started = append(started, t.startConfigured(Spawn{Node: node, Program: program,
			environment: []string{"LD_PRELOAD=" + t.ticketLibrary(), "BALLAST_TICKETS=" + t.ticketFile(node, one.Name)}}, what.Dir, allSoftware[program], what))
	}
	for i, p := range started {
		t.AwaitPort(t.Context, p, ServerName(i+1), netip.AddrPortFrom(one.VIP, one.Ports[0]))
	}
}

// ticketFile is where the agent of a node tells applications of a service what they make tickets by.
func (l *Lab) ticketFile(node, service string) string {
	return filepath.Join(l.NodeDir(node), "run", "tickets", instance, service+".json")
}

// Certificate makes one for TLS servers, and returns its files: it without .crt, .key, and .pem with both.
func (t *Trial) Certificate() string {
	certificate := t.certificate()
	var both []byte
	for _, file := range []string{certificate + ".crt", certificate + ".key"} {
		both = append(both, script.Must(os.ReadFile(file))...)
	}
	script.Checkf(os.WriteFile(certificate+".pem", both, 0o600), "write a certificate with its key")
	return certificate
}

// shareTicketKey makes the key by which all servers encrypt tickets, and returns agents' flags.
func (l *Lab) shareTicketKey(random *rand.Rand) []string {
	first, second := fleet.RandomKey(random), fleet.RandomKey(random)
	path := filepath.Join(l.dir, "ticket.key")
	script.Checkf(os.WriteFile(path, fmt.Appendf(nil, "%x%x\n", first, second), 0o600), "share the key of session tickets")
	return []string{"--ticket-key", path, "--ticket-group", ticketGroup}
}
