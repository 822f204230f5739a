package world

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/stateful"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/software"
)

// Foreign starts servers, proxies and clients that are not ours.
type Foreign struct {
	servers   *Servers
	endpoints *Endpoints
	lab       *host.Lab
	network   *Network
	fleet     *fleet.Fleet
}

const redisPort = 6379

// StartTLS starts a program for a service on every server. Its session tickets are by the file of the server's agent as
// soon as that is there.
func (f *Foreign) StartTLS(program string, one *fleet.Service, certificate string) {
	address := netip.AddrPortFrom(one.VIP, one.Ports[0])
	var started []*host.Process
	for _, node := range names(ServerName, len(f.network.Servers)) {
		started = append(started, software.TLS(f.lab, node, program, address, certificate, ticketFile(f.lab, node, one.Name)).Start(f.lab))
	}
	for _, p := range started {
		p.AwaitPort(address)
	}
}

// StartNginxQUIC starts an nginx that speaks QUIC for the trial's service on every server, with the library that gives
// it connection ids.
func (f *Foreign) StartNginxQUIC(path string) {
	f.startQUIC(func(node, certificate, ids string) software.Program {
		program := f.servers.web(node, filepath.Join(f.lab.NodeDir(node), "nginx-quic"), f.fleet.Target()+" quic")
		site := program.Values.(software.Site)
		site.Certificate = certificate
		program.Name, program.Values = path, site
		program.Environment = []string{"LD_PRELOAD=" + software.Preloaded(&f.lab.Options, "quic"), "BALLAST_QUIC=" + ids}
		return program
	})
}

// StartQUIC starts a program that makes its connection ids itself, by arguments as those of test/aioquic-server.py, on
// every server.
func (f *Foreign) StartQUIC(path string) {
	f.startQUIC(func(node, certificate, ids string) software.Program {
		return software.Program{Node: node, Name: path, Arguments: []string{f.fleet.Target(), node, certificate, ids}}
	})
}

func (f *Foreign) startQUIC(program func(node, certificate, ids string) software.Program) {
	certificate := f.Certificate()
	for _, node := range names(ServerName, len(f.network.Servers)) {
		p := program(node, certificate, idsFile(f.lab, node, f.fleet.Services[0].Name)).Start(f.lab)
		if f.endpoints.agents[node] != nil { // without, it may wait for its file
			f.endpoints.awaitHTTP3(node, p.Died)
		}
	}
}

// Certificate makes one for servers.
func (f *Foreign) Certificate() string { return software.Certificate(f.lab) }

// StartRedis starts Redis on server i, which is of no service, and returns its address.
func (f *Foreign) StartRedis(i int, cpus float64) netip.AddrPort {
	node, address := ServerName(i), netip.AddrPortFrom(f.network.ServerAddress(i, false), redisPort)
	software.Program{Node: node, Name: "redis-server", CPUs: cpus, Listens: address, Arguments: []string{"--bind", address.Addr().String(),
		"--port", fmt.Sprint(redisPort), "--save", "", "--appendonly", "no", "--protected-mode", "no", "--dir", f.lab.NodeDir(node)}}.Start(f.lab)
	return address
}

// RedisCommands is how many it has carried out.
func (f *Foreign) RedisCommands(i int, address netip.AddrPort) uint64 {
	var conn net.Conn
	script.Check(f.lab.Space(ServerName(i)).Do(func() (err error) {
		conn, err = net.Dial("tcp", address.String())
		return err
	}))
	return script.Must(stateful.Commands(f.lab.Context, conn))
}

// StartStateful starts applications on the first servers, of which each host's have so much CPU together. Options name
// the service whose tickets they make.
func (f *Foreign) StartStateful(servers int, cpus float64, all ...stateful.Options) {
	for _, node := range names(ServerName, servers) {
		for _, o := range all {
			o.Name = node
			if o.Tickets != "" {
				o.Tickets = ticketFile(f.lab, node, o.Tickets)
			}
			p := f.lab.StartPeer(process.Stateful, host.Spawn{Node: node, Environment: []string{"GOMAXPROCS=2"}}, &o)
			p.LimitCPU(node, cpus)
			p.AwaitPort(netip.MustParseAddrPort(o.Address))
		}
	}
}

// StartProxy starts a program on the first load balancer, which hands requests at an address on to a port of the
// servers. It keeps a session at its server by a cookie: HAProxy by its own, nginx, which has that only in its
// commercial edition, by the application's.
func (f *Foreign) StartProxy(program string, port, servers, to int, cpus float64, certificate string) (address string) {
	node := LBName(1)
	balancer, _ := uplinkAddresses(1, false)
	site := software.Site{Dir: filepath.Join(f.lab.NodeDir(node), program), Name: program, Address: netip.AddrPortFrom(balancer.Addr(), uint16(port)),
		Certificate: certificate, Header: stateful.ProxyHeader, Cookie: stateful.RouteCookie}
	for i, name := range names(ServerName, servers) {
		site.Servers = append(site.Servers, software.Site{Name: name, Address: netip.AddrPortFrom(f.network.ServerAddress(i+1, false), uint16(to))})
	}
	software.Program{Node: node, Name: program, Configuration: program + "-proxy", Dir: site.Dir, Values: site,
		CPUs: cpus, Group: node + "-" + program, Listens: site.Address}.Start(f.lab)
	return site.Address.String()
}

// Visit starts Chromium, which loads the page of the trial's TLS servers, or over QUIC that of its HTTP/3 servers.
func (f *Foreign) Visit(certificate string, quic bool) *software.Visit {
	return software.Browse(f.lab, ClientNode, f.fleet.Services[0].VIP, certificate, quic).Visit(f.lab)
}

// VisitBy starts another client, with the trial's service for its argument.
func (f *Foreign) VisitBy(path string) *software.Visit {
	return software.Program{Node: ClientNode, Name: path, Arguments: []string{f.fleet.Target()}}.Visit(f.lab)
}
