// What runs on the servers of a lab: nginx, or an application server of known capacity.
package world

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/app"
	"github.com/ballast-lb/ballast/internal/lab/process/http3"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/linux/check"
	"github.com/ballast-lb/ballast/internal/model"
)

// AppServer describes an application server (`internal/lab/process/app`).
type AppServer struct {
	CPUs   float64 // that it gets; if the machine limits no CPU, its work is sleeping at this speed instead
	Sleep  bool    // its work is sleeping in any case
	Shared bool    // requests share it; else they are served in order
	Limit  int64   // requests at once, beyond which it refuses; 0: none
}

// How the servers' work is done.
const (
	workBurns  = "CPU time, limited by cgroups"
	workSleeps = "sleeping"
	workSends  = "sending, limited by the links"
)

// startServers starts what is to run on all servers and waits until all of it answers.
func (t *Trial) startServers() {
	root, limits := findCgroups()
	t.Work = t.howWorkIsDone(limits)
	errs := make([]error, len(t.Topology.Servers))
	var starting sync.WaitGroup
	for i, server := range t.Topology.Servers {
		if i < t.Topology.Functions {
			continue
		}
		starting.Go(func() {
			errs[i] = script.Try(func() {
				if name := ServerName(i + 1); server.App == nil {
					t.startNginx(t.Context, name)
				} else {
					t.startApp(name, *server.App, root, limits == nil)
				}
			})
		})
	}
	starting.Wait()
	script.Check(errors.Join(errs...))
}

// howWorkIsDone tells what bounds the servers, which have no CPU limits for the given reason.
func (l *Lab) howWorkIsDone(noLimits error) string {
	apps := func(server ServerNode) bool { return server.App != nil }
	burns := func(server ServerNode) bool { return server.App != nil && !server.App.Sleep }
	switch {
	case !slices.ContainsFunc(l.Topology.Servers, apps):
		return workSends
	case !slices.ContainsFunc(l.Topology.Servers, burns):
		return workSleeps
	case noLimits != nil:
		return fmt.Sprintf("%s (%v)", workSleeps, noLimits)
	default:
		return workBurns
	}
}

// startApp starts an application server on port 80 and waits until it answers. With affinity quic it serves the trial's service as well.
func (t *Trial) startApp(node string, what AppServer, root cgroupRoot, limits bool) {
	limits = limits && !what.Sleep
	options := app.Options{Address: ":80", Server: node, Sleep: !limits, Speed: what.CPUs, Shared: what.Shared, Limit: what.Limit}
	if services := t.Setup.Services; len(services) > 0 && services[0].Affinity == model.AffinityQUIC {
		options.HTTP3 = t.http3Options(node)
	}
	// Two threads of Go code: the one that works and one for the network.
	p := t.startPeer(process.App, Spawn{Node: node, environment: []string{"GOMAXPROCS=2"}}, options)
	t.AwaitPort(t.Context, p, node, netip.MustParseAddrPort("127.0.0.1:80"))
	if limits {
		t.limitCPU(root, p, node, what.CPUs)
	}
}

// Slow leaves application server i, whose work is sleeping, a share of its speed, as if other work had come there.
func (t *Trial) Slow(i int, share float64) {
	node := ServerName(i)
	script.Checkf(t.Space(node).Do(func() error {
		connection, err := net.Dial("tcp", "127.0.0.1:80")
		if err != nil {
			return err
		}
		defer connection.Close()
		if err := connection.SetDeadline(time.Now().Add(DaemonDeadline)); err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(t.Context, http.MethodPut, fmt.Sprintf("http://%s/speed?share=%g", node, share), nil)
		if err != nil {
			return err
		}
		if err := request.Write(connection); err != nil {
			return err
		}
		answer, err := http.ReadResponse(bufio.NewReader(connection), request)
		if err == nil && answer.StatusCode != http.StatusOK {
			err = errors.New(answer.Status)
		}
		return err
	}), "slow %s down", node)
}

// StartEchoes starts an echo server for a service on every server.
func (t *Trial) StartEchoes(target string) {
	for i := range t.Topology.Servers {
		t.startEcho(ServerName(i+1), target, ServerName(i+1))
	}
}

// StartOutside starts an echo server on every server that clients reach through functions. It says its clients' ports: those of the functions.
func (t *Trial) StartOutside(port int) {
	for i := t.Topology.Functions; i < len(t.Topology.Servers); i++ {
		t.startEcho(ServerName(i+1), netip.AddrPortFrom(t.Topology.ServerAddress(i+1, false), uint16(port)).String(), traffic.EchoPort)
	}
}

func (t *Trial) startEcho(node, target, name string) {
	address := netip.MustParseAddrPort(target)
	echo := script.Must(t.Start(Spawn{Node: node, Program: t.Processes, Arguments: []string{process.Peer, process.Echo, target, name}}))
	Await(t.Context, DaemonDeadline, echo.name+" listens", func() error {
		if err := echo.Died(); err != nil {
			return StopWaiting(err)
		}
		return t.Space(node).Do(func() error { return ask(address, []byte("?")) })
	})
}

// StartHTTP3 starts an HTTP/3 server for the trial's service on every server. With affinity quic it makes connection ids by the file of the server's agent, and
// waits for that where there is none yet.
func (t *Trial) StartHTTP3(retry bool) {
	tickets := binary.NativeEndian.AppendUint64(make([]byte, 24), t.Random.Uint64())
	t.startHTTP3(http3.Options{Retry: retry, Tickets: tickets})
}

// startHTTP3 starts servers with what the given options say beyond address, name and ids.
func (t *Trial) startHTTP3(with http3.Options) {
	for i := range t.Topology.Servers {
		node := ServerName(i + 1)
		options := t.http3Options(node)
		options.Retry, options.Tickets, options.Certificate = with.Retry, with.Tickets, with.Certificate
		p := t.startPeer(process.HTTP3, Spawn{Node: node}, options)
		if t.Agents[node] != nil || options.IDs == "" {
			t.awaitHTTP3(node, p.Died)
		}
	}
}

// http3Options are those of a server of the trial's service.
func (t *Trial) http3Options(node string) *http3.Options {
	one := t.Fleet.Services[0]
	options := &http3.Options{Address: one.Target(), Server: node}
	if one.Affinity == model.AffinityQUIC {
		options.IDs = filepath.Join(t.NodeDir(node), "run", "quic", instance, one.Name+".json")
	}
	return options
}

// AwaitHTTP3 waits until application servers serve the trial's service over QUIC.
func (t *Trial) AwaitHTTP3() {
	for i := range t.Topology.Servers {
		t.awaitHTTP3(ServerName(i+1), t.deaths)
	}
}

// awaitHTTP3 waits until somebody on a node lists the versions of QUIC that it has.
func (t *Trial) awaitHTTP3(node string, died func() error) {
	target := netip.MustParseAddrPort(t.Target())
	hello := (&check.Target{Health: model.Health{Check: model.CheckQUIC}}).Hello(t.Random.Float64)
	Await(t.Context, DaemonDeadline, node+" serves HTTP/3", func() error {
		if err := died(); err != nil {
			return StopWaiting(err)
		}
		return t.Space(node).Do(func() error { return ask(target, hello) })
	})
}

// ask sends one datagram to a local server and waits for an answer.
func ask(address netip.AddrPort, datagram []byte) error {
	socket, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(address))
	if err != nil {
		return err
	}
	defer socket.Close()
	if err := socket.SetDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		return err
	}
	if _, err := socket.Write(datagram); err != nil {
		return err
	}
	_, err = socket.Read(make([]byte, 2048))
	return err
}
