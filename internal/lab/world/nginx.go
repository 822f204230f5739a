// The servers' nginx: stock, one worker, its whole configuration in the lab's directory.
package world

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"text/template"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Paths that every nginx of a lab serves. Blob is as long as a request's Range wants.
const (
	PathName   = "/name"
	PathBlob   = "/blob"
	PathUpload = "/upload/"
	PathHealth = "/health" // there as long as the server is to count as healthy
	blobBytes  = 8 << 30
)

// PathSlow is the blob at a limited rate.
func PathSlow(bytesPerSecond int) string { return fmt.Sprintf("/slow/%d/blob", bytesPerSecond) }

// nginxFolders are where nginx keeps what it has not read or sent yet.
const nginxFolders = `
  client_body_temp_path {{.Dir}}/body;
  proxy_temp_path {{.Dir}}/proxy;
  fastcgi_temp_path {{.Dir}}/fastcgi;
  uwsgi_temp_path {{.Dir}}/uwsgi;
  scgi_temp_path {{.Dir}}/scgi;`

var nginxTemplate = template.Must(template.New("nginx").Parse(`
daemon off;
master_process off;
user root;
pid {{.Dir}}/nginx.pid;
error_log {{.Dir}}/nginx-error.log warn;
events { worker_connections 16384; }
http {
  access_log off;
  sendfile on;
  tcp_nopush {{.Push}};
  default_type application/octet-stream;
  keepalive_timeout 3600s;
  keepalive_requests 1000000;
  client_body_timeout 3600s;
  send_timeout 3600s;
  client_max_body_size 0;` + nginxFolders + `
  server {
{{range .Listen}}    listen {{.}};
{{end}}{{with .Certificate}}    ssl_certificate {{.}}.crt;
    ssl_certificate_key {{.}}.key;
{{end}}    add_header {{.Header}} {{.Name}} always;
    location = /port { return 200 "$remote_port\n"; }
    location = /name { return 200 "{{.Name}}\n"; }
    location = /blob { root {{.Root}}; }
    location ~ ^/slow/(?<rate>[0-9]+)/(?<file>.+)$ { alias {{.Root}}/$file; limit_rate $rate; }
    location = /status { stub_status; }
    location = {{.Health}} { root {{.Dir}}; }
    location /upload/ { root {{.Dir}}; dav_methods PUT; create_full_put_path on; }
  }
}
`))

// site is what nginx is to serve, and where.
type site struct {
	Dir, Name, Root, Header, Health, Push string
	Listen                                []string
	Certificate                           string // files of QUIC, without .crt and .key
}

// writeNginx writes the configuration of a server's nginx into a directory of its own, and returns the arguments that name it.
func (l *Lab) writeNginx(dir, server string, what site) []string {
	what.Dir, what.Name, what.Root, what.Header, what.Health, what.Push = dir, server, l.webRoot(), traffic.ServerHeader, PathHealth, "on"
	if l.Topology.MPTCP { // Linux 6.18: a header that waits on one subflow lets what follows on the other fill the client's buffer, for ever
		what.Push = "off"
	}
	var text bytes.Buffer
	script.Checkf(nginxTemplate.Execute(&text, what), "write nginx configuration")
	path := filepath.Join(dir, "nginx.conf")
	script.Checkf(os.MkdirAll(dir, 0o755), "write nginx configuration")
	script.Checkf(os.WriteFile(path, text.Bytes(), 0o644), "write nginx configuration")
	script.Checkf(os.WriteFile(filepath.Join(dir, PathHealth), []byte("healthy\n"), 0o644), "make %s healthy", server)
	return []string{"-p", dir, "-c", path}
}

// startNginx starts nginx on a server and waits until it answers.
func (l *Lab) startNginx(ctx context.Context, server string) {
	command := append([]string{"nginx"}, l.writeNginx(l.NodeDir(server), server, site{
		Listen: []string{"0.0.0.0:80 backlog=8192", "[::]:80 ipv6only=on backlog=8192", "0.0.0.0:8080", "[::]:8080 ipv6only=on"}})...)
	if l.Topology.MPTCP {
		command = append([]string{"mptcpize", "run"}, command...)
	}
	nginx, err := l.Start(Spawn{Node: server, Program: command[0], Arguments: command[1:]})
	if err != nil {
		script.Check(fmt.Errorf("%w: install %s", err, command[0]))
	}
	l.mutex.Lock()
	l.nginx[server] = nginx
	l.mutex.Unlock()
	l.AwaitPort(ctx, nginx, server, netip.MustParseAddrPort("127.0.0.1:80"))
}

// KillServer kills the nginx of server i. Its host goes on, and refuses connections.
func (l *Lab) KillServer(i int) { l.nginx[ServerName(i)].Kill() }

// RestartServer starts the nginx of server i again.
func (t *Trial) RestartServer(i int) { t.startNginx(t.Context, ServerName(i)) }

// StartNginxQUIC starts an nginx that speaks QUIC for the trial's service on every server, with the library that gives it connection ids.
func (t *Trial) StartNginxQUIC(program string) {
	t.startQUIC(func(node, certificate, ids string) Spawn {
		return Spawn{Program: program,
			Arguments:   t.writeNginx(filepath.Join(t.NodeDir(node), "nginx-quic"), node, site{Listen: []string{t.Target() + " quic"}, Certificate: certificate}),
			environment: []string{"LD_PRELOAD=" + filepath.Join(filepath.Dir(t.Binary), "ballast-quic.so"), "BALLAST_QUIC=" + ids}}
	})
}

// StartQUIC starts a program that makes its connection ids itself, by arguments as those of test/aioquic-server.py, on every server.
func (t *Trial) StartQUIC(program string) {
	t.startQUIC(func(node, certificate, ids string) Spawn {
		return Spawn{Program: program, Arguments: []string{t.Target(), node, certificate, ids}}
	})
}

func (t *Trial) startQUIC(program func(node, certificate, ids string) Spawn) {
	certificate := t.certificate()
	for i := range t.Topology.Servers {
		node := ServerName(i + 1)
		what := program(node, certificate, filepath.Join(t.NodeDir(node), "run", "quic", instance, t.Fleet.Services[0].Name+".json"))
		what.Node = node
		p := script.Must(t.Start(what))
		if t.Agents[node] != nil { // without, it may wait for its file
			t.awaitHTTP3(node, p.Died)
		}
	}
}

// certificate makes one for servers of QUIC, and returns its file, without .crt and .key.
func (t *Trial) certificate() string {
	certificate := filepath.Join(t.dir, "quic")
	said, err := exec.Command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=lab",
		"-keyout", certificate+".key", "-out", certificate+".crt").CombinedOutput()
	script.Checkf(err, "make a certificate: %s", said)
	return certificate
}

// webRoot makes the directory that all servers serve; the blob is sparse.
func (l *Lab) webRoot() string {
	root := filepath.Join(l.dir, "www")
	script.Checkf(os.MkdirAll(root, 0o755), "make web root")
	blob, err := os.OpenFile(filepath.Join(root, "blob"), os.O_CREATE|os.O_WRONLY, 0o644)
	script.Checkf(err, "make blob")
	defer blob.Close()
	script.Checkf(blob.Truncate(blobBytes), "make blob")
	return root
}

// AwaitPort waits until something listens at address on the node, or the process has died.
func (l *Lab) AwaitPort(ctx context.Context, p *Process, node string, address netip.AddrPort) {
	what := fmt.Sprintf("%s listens on %s", p.name, address)
	Await(ctx, DaemonDeadline, what, func() error {
		if err := p.Died(); err != nil {
			return StopWaiting(err)
		}
		return l.Space(node).Do(func() error {
			connection, err := net.DialTimeout("tcp", address.String(), time.Second)
			if err == nil {
				err = connection.Close()
			}
			return err
		})
	})
}
