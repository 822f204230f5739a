package comparison

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/software"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// haproxy copies bytes: master and worker, listeners handed on at a reload, workers that end with their last connection (no hard-stop-after), servers
// changed over its socket.
func haproxy() Contender {
	return Contender{
		Name: "haproxy", About: "HAProxy in TCP mode on two balancers; changes over its socket, seamless reload", Balancers: 2, Checks: true,
		Programs: map[string]string{"haproxy": "haproxy"},
		Version:  func(string) []string { return []string{"haproxy", "-v"} },
		New:      func(t *world.Trial) Balancing { return newProxies(t, &haproxyHost{}) },
	}
}

// nginx copies bytes, too. What it knows of servers' health is what connections meet: the free edition has no other checks.
func nginx() Contender {
	return Contender{
		Name: "nginx", About: "nginx stream on two balancers; changes by reload, health by failed connections", Balancers: 2, Checks: true,
		Programs: map[string]string{"nginx": "nginx-light", streamModule: "libnginx-mod-stream"},
		Version:  func(string) []string { return []string{"nginx", "-v"} },
		New:      func(t *world.Trial) Balancing { return newProxies(t, &nginxHost{}) },
	}
}

const streamModule = "/usr/lib/nginx/modules/ngx_stream_module.so"

// proxySite is the value of a proxy's configuration.
type proxySite struct {
	Dir, Module, Health string
	Listen              netip.AddrPort
	CheckMS, TimeoutMS  int64
	Rise, Fall          int
	Servers             []proxyServer
}

type proxyServer struct {
	Name    string
	Address netip.AddrPort
	State   State
}

// In reports whether a server is in the pool: the configuration asks.
func (s proxyServer) In() bool { return s.State == Active }

// proxyHost is one kind of proxy.
type proxyHost interface {
	program(node string, site proxySite) software.Program
	change(t *world.Trial, p *host.Process, site proxySite) // the configuration is written
	stop(t *world.Trial, p *host.Process)
	reload(t *world.Trial, p *host.Process, site proxySite)
}

// proxies are those of all balancers.
type proxies struct {
	t       *world.Trial
	kind    proxyHost
	pool    []State
	running map[int]*host.Process
}

func newProxies(t *world.Trial, kind proxyHost) *proxies {
	return &proxies{t: t, kind: kind, running: map[int]*host.Process{}}
}

func (p *proxies) site(i int) proxySite {
	site := proxySite{Dir: filepath.Join(p.t.Lab.NodeDir(world.LBName(i)), "proxy"), Module: streamModule, Health: world.PathHealth, Listen: target,
		CheckMS: checkInterval.Milliseconds(), TimeoutMS: checkTimeout.Milliseconds(), Rise: checkRise, Fall: checkFall}
	for k, state := range p.pool {
		site.Servers = append(site.Servers, proxyServer{world.ServerName(k + 1), netip.AddrPortFrom(serverAddress(p.t, k+1), 80), state})
	}
	return site
}

func (p *proxies) Start(pool []State) {
	p.pool = pool
	ownVIP(p.t)
	for i := 1; i <= p.t.Network.LBs; i++ {
		p.Boot(i)
	}
}

func (p *proxies) Change(pool []State) {
	p.pool = pool
	for i, process := range p.running {
		site := p.site(i)
		program := p.kind.program(world.LBName(i), site)
		software.Configure(program.Configuration, program.Dir, program.Values)
		p.kind.change(p.t, process, site)
	}
}

func (p *proxies) Boot(i int) {
	p.running[i] = p.kind.program(world.LBName(i), p.site(i)).Start(p.t.Lab)
}

func (p *proxies) Kill(i int) {
	p.running[i].KillAll()
	delete(p.running, i)
}

func (p *proxies) Restart(i int) {
	p.kind.stop(p.t, p.running[i])
	p.Boot(i)
}

func (p *proxies) Reload(i int) { p.kind.reload(p.t, p.running[i], p.site(i)) }

func (p *proxies) Processes() (all []*host.Process) {
	for _, one := range p.running {
		all = append(all, one)
	}
	return all
}

// stopWithin is after what time a service manager kills what it has asked to end.
func stopWithin(t *world.Trial, p *host.Process, within time.Duration, signal syscall.Signal) {
	ctx, cancel := loadmeter.WithTimeout(t.Context, within)
	defer cancel()
	p.Signal(signal)
	select {
	case <-p.Exited:
	case <-ctx.Done():
	}
	p.KillAll()
}

type haproxyHost struct{}

func (*haproxyHost) program(node string, site proxySite) software.Program {
	return software.Program{Node: node, Name: "haproxy", Configuration: "haproxy-stream", Dir: site.Dir, Values: site, Arguments: []string{"-W"}, Listens: target}
}

// change is by the runtime API (management guide, 9.3), which needs no reload.
func (*haproxyHost) change(t *world.Trial, _ *host.Process, site proxySite) {
	for _, server := range site.Servers {
		state := map[State]string{Absent: "maint", Draining: "drain", Active: "ready"}[server.State]
		answer, err := ask(t, site, fmt.Sprintf("set server web/%s state %s", server.Name, state))
		if err == nil && answer != "" {
			err = fmt.Errorf("%s to be %s: %s", server.Name, state, answer)
		}
		script.Checkf(err, "change HAProxy")
	}
}

// ask has HAProxy's runtime API carry out a command, and returns what it says.
func ask(t *world.Trial, site proxySite, command string) (string, error) {
	connection, err := (&net.Dialer{}).DialContext(t.Context, "unix", filepath.Join(site.Dir, "socket"))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(await.Deadline)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(connection, command+"\n"); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(connection)
	return strings.TrimSpace(string(answer)), err
}

var workerPID = regexp.MustCompile(`(?m)^Pid: \d+$`)

// worker is the process that serves, by its number.
func (*haproxyHost) worker(t *world.Trial, site proxySite) (string, error) {
	answer, err := ask(t, site, "show info")
	if pid := workerPID.FindString(answer); err != nil || pid != "" {
		return pid, err
	}
	return "", fmt.Errorf("HAProxy says %q", answer)
}

// stop is what Debian's unit does.
func (*haproxyHost) stop(t *world.Trial, p *host.Process) {
	stopWithin(t, p, 10*time.Second, syscall.SIGTERM)
}

// reload has the master start another worker, which takes the listeners; the old one ends with its last connection.
func (h *haproxyHost) reload(t *world.Trial, p *host.Process, site proxySite) {
	before := script.Must(h.worker(t, site))
	p.Signal(syscall.SIGUSR2)
	p.Wanted.Store(false)
	p.Await("HAProxy has another worker", func() error {
		now, err := h.worker(t, site)
		if err == nil && now == before {
			err = errors.New("it has not")
		}
		return err
	})
}

type nginxHost struct{}

func (*nginxHost) program(node string, site proxySite) software.Program {
	return software.Program{Node: node, Name: "nginx", Configuration: "nginx-stream", Dir: site.Dir, Values: site, Arguments: []string{"-p", site.Dir}, Listens: target}
}

func (n *nginxHost) change(t *world.Trial, p *host.Process, site proxySite) { n.reload(t, p, site) }

// stop is what Debian's unit does.
func (*nginxHost) stop(t *world.Trial, p *host.Process) {
	stopWithin(t, p, 5*time.Second, syscall.SIGQUIT)
}

func (*nginxHost) reload(_ *world.Trial, p *host.Process, _ proxySite) {
	p.Signal(syscall.SIGHUP)
	p.Wanted.Store(false)
}
