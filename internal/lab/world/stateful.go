// An application whose sessions have a state, where that is kept, and proxies in front of it.
package world

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/stateful"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

const redisPort = 6379

// StartRedis starts Redis on server i, which is of no service, and returns its address.
func (t *Trial) StartRedis(i int, cpus float64) netip.AddrPort {
	node, address := ServerName(i), netip.AddrPortFrom(t.Topology.ServerAddress(i, false), redisPort)
	p := script.Must(t.Start(Spawn{Node: node, Program: "redis-server", Arguments: []string{"--bind", address.Addr().String(), "--port", fmt.Sprint(redisPort),
		"--save", "", "--appendonly", "no", "--protected-mode", "no", "--dir", t.NodeDir(node)}}))
	t.AwaitPort(t.Context, p, node, address)
	t.limitCPU(script.Must(findCgroups()), p, node, cpus)
	return address
}

// RedisCommands is how many it has carried out.
func (t *Trial) RedisCommands(i int, address netip.AddrPort) (count uint64) {
	script.Check(t.Space(ServerName(i)).Do(func() (err error) {
		count, err = stateful.Commands(t.Context, address.String())
		return err
	}))
	return count
}

// StartStateful starts applications on the first servers, of which each host's have so much CPU together. Options name the service whose tickets they make.
func (t *Trial) StartStateful(servers int, cpus float64, all ...stateful.Options) {
	for i := range servers {
		node := ServerName(i + 1)
		for _, o := range all {
			o.Name = node
			if o.Tickets != "" {
				o.Tickets = t.ticketFile(node, o.Tickets)
			}
			p := t.startPeer(process.Stateful, Spawn{Node: node, environment: []string{"GOMAXPROCS=2"}}, &o)
			t.limitCPU(script.Must(findCgroups()), p, node, cpus)
			t.AwaitPort(t.Context, p, node, netip.MustParseAddrPort(o.Address))
		}
	}
}

// Measured has clients make requests by a plan, and returns what they have seen.
func (t *Trial) Measured(plan stateful.Plan) (seen stateful.Outcome) {
	plan.Seed = t.Random.Uint64()
	t.ask(process.Measure, &plan, &seen)
	return seen
}

// ask runs a process of clients, which are told what to do and say what they have seen.
func (t *Trial) ask(name string, plan, seen any) {
	var said transcript
	text := script.Must(json.Marshal(plan))
	p := script.Must(t.Start(Spawn{Node: ClientNode, Program: t.Processes, Arguments: []string{process.Peer, name}, stdin: bytes.NewReader(text), Stdout: &said}))
	p.wanted.Store(true)
	select {
	case <-p.Exited:
	case <-t.Context.Done():
		script.Check(t.Context.Err())
	}
	if p.Err != nil {
		script.Check(fmt.Errorf("%s: %w: %s", p, p.Err, p.LastWords()))
	}
	script.Check(json.Unmarshal([]byte(said.String()), seen))
}

// proxied is what a proxy passes on, and where.
type proxied struct {
	Dir, Name, Address, Certificate, Header, Cookie string
	Servers                                         []proxiedTo
}

type proxiedTo struct{ Name, Address string }

// proxies keep a session at its server by a cookie: HAProxy by its own, nginx, which has that only in its commercial edition, by the application's.
var proxies = map[string]software{
	"nginx": {[]string{"-c"}, configuration("nginx", `
daemon off;
master_process off;
user root;
pid {{.Dir}}/pid;
error_log {{.Dir}}/error.log warn;
events { worker_connections 8192; }
http {
  access_log off;`+nginxFolders+`
  upstream any { {{range .Servers}}server {{.Address}}; {{end}} keepalive 64; }
{{range .Servers}}  upstream {{.Name}} { server {{.Address}}; keepalive 64; }
{{end}}  map $cookie_{{.Cookie}} $to { {{range .Servers}}{{.Name}} {{.Name}}; {{end}} default any; }
  server {
    listen {{.Address}} ssl backlog=4096;
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_certificate {{.Certificate}}.crt;
    ssl_certificate_key {{.Certificate}}.key;
    add_header {{.Header}} {{.Name}};
    location / { proxy_pass http://$to; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host; }
  }
}
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
  bind {{.Address}} ssl crt {{.Certificate}}.pem
  http-response set-header {{.Header}} {{.Name}}
  default_backend any
backend any
  balance roundrobin
  cookie SERVER insert indirect nocache
{{range .Servers}}  server {{.Name}} {{.Address}} cookie {{.Name}}
{{end}}`)},
}

// StartProxy starts a program on the first load balancer, which hands requests at an address on to a port of the servers.
func (t *Trial) StartProxy(program string, port, servers, to int, cpus float64, certificate string) (address string) {
	node := LBName(1)
	listens := netip.AddrPortFrom(prefix("10.20.%d.2/24", 1).Addr(), uint16(port))
	what := proxied{Dir: filepath.Join(t.NodeDir(node), program), Name: program, Address: listens.String(), Certificate: certificate,
		Header: stateful.ProxyHeader, Cookie: stateful.RouteCookie}
	for i := range servers {
		what.Servers = append(what.Servers, proxiedTo{ServerName(i + 1), netip.AddrPortFrom(t.Topology.ServerAddress(i+1, false), uint16(to)).String()})
	}
	p := t.startConfigured(Spawn{Node: node, Program: program}, what.Dir, proxies[program], what)
	t.limitCPU(script.Must(findCgroups()), p, node+"-"+program, cpus)
	t.AwaitPort(t.Context, p, node, listens)
	return listens.String()
}

// startConfigured writes a program's configuration into a folder, and starts it.
func (t *Trial) startConfigured(how Spawn, dir string, program software, what any) *Process {
	var text bytes.Buffer
	script.Checkf(program.configuration.Execute(&text, what), "configure %s", how.Program)
	script.Checkf(os.MkdirAll(dir, 0o755), "configure %s", how.Program)
	file := filepath.Join(dir, "configuration")
	script.Checkf(os.WriteFile(file, text.Bytes(), 0o644), "configure %s", how.Program)
	how.Arguments = append(append([]string(nil), program.arguments...), file)
	how.Program = script.Must(findProgram(how.Program))
	return script.Must(t.Start(how))
}
