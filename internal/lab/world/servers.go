// What runs on the servers of a lab: nginx, or an application server of known capacity.
package world

import (
	"bufio"
	"context"
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
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/script"
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
func (l *Lab) startServers(ctx context.Context) {
	root, limits := findCgroups()
	l.Work = l.howWorkIsDone(limits)
	errs := make([]error, len(l.Topology.Servers))
	var starting sync.WaitGroup
	for i, server := range l.Topology.Servers {
		starting.Go(func() {
			errs[i] = script.Try(func() {
				if name := ServerName(i + 1); server.App == nil {
					l.startNginx(ctx, name)
				} else {
					l.startApp(ctx, name, *server.App, root, limits == nil)
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
	switch {
	case !slices.ContainsFunc(l.Topology.Servers, apps):
		return workSends
	case noLimits != nil:
		return fmt.Sprintf("%s (%v)", workSleeps, noLimits)
	default:
		return workBurns
	}
}

// startApp starts an application server on port 80 and waits until it answers.
func (l *Lab) startApp(ctx context.Context, node string, what AppServer, root cgroupRoot, limits bool) {
	limits = limits && !what.Sleep
	// Two threads of Go code: the one that works and one for the network.
	p := l.startPeer(process.App, Spawn{Node: node, environment: []string{"GOMAXPROCS=2"}}, app.Options{
		Address: ":80", Server: node, Sleep: !limits, Speed: what.CPUs, Shared: what.Shared, Limit: what.Limit,
	})
	l.AwaitPort(ctx, p, node, netip.MustParseAddrPort("127.0.0.1:80"))
	if limits {
		l.limitCPU(root, p, node, what.CPUs)
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

// StartEchoes starts an echo server for the trial's service on every server.
func (t *Trial) StartEchoes() {
	address := netip.MustParseAddrPort(t.Target())
	for i := range t.Topology.Servers {
		node := ServerName(i + 1)
		echo := script.Must(t.Start(Spawn{Node: node, Program: t.Processes, Arguments: []string{process.Echo, address.String(), node}}))
		Await(t.Context, DaemonDeadline, echo.name+" listens", func() error {
			if err := echo.Died(); err != nil {
				return StopWaiting(err)
			}
			return t.Space(node).Do(func() error { return askEcho(address) })
		})
	}
}

// StartHTTP3 starts an HTTP/3 server for the trial's service on every server. With affinity quic it makes connection ids by the file of the server's agent, and
// waits for that where there is none yet.
func (t *Trial) StartHTTP3(retry bool) {
	one := t.Fleet.Services[0]
	for i := range t.Topology.Servers {
		node := ServerName(i + 1)
		options := http3.Options{Address: one.Target(), Server: node, Retry: retry}
		if one.Affinity == model.AffinityQUIC {
			options.IDs = filepath.Join(t.NodeDir(node), "run", "quic", instance, one.Name+".json")
		}
		p := t.startPeer(process.HTTP3, Spawn{Node: node}, options)
		if t.Agents[node] == nil && options.IDs != "" {
			continue
		}
		t.awaitDatagrams(p, node)
	}
}

// awaitDatagrams waits until a process on the node has the port of the trial's service.
func (t *Trial) awaitDatagrams(p *Process, node string) {
	Await(t.Context, DaemonDeadline, p.name+" listens", func() error {
		if err := p.Died(); err != nil {
			return StopWaiting(err)
		}
		return t.Space(node).Do(func() error {
			socket, err := net.ListenPacket("udp", t.Target())
			if err != nil {
				return nil // it has the port
			}
			return errors.Join(errors.New("nobody has the port"), socket.Close())
		})
	})
}

// askEcho sends one datagram to a local echo server and waits for the answer.
func askEcho(address netip.AddrPort) error {
	socket, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(address))
	if err != nil {
		return err
	}
	defer socket.Close()
	if err := socket.SetDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		return err
	}
	if _, err := socket.Write([]byte("?")); err != nil {
		return err
	}
	_, err = socket.Read(make([]byte, 64))
	return err
}
