// Servers of ours that a scenario starts for the trial's service.
package world

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/http3"
	"github.com/ballast-lb/ballast/internal/lab/process/session"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/linux/check"
	"github.com/ballast-lb/ballast/internal/model"
)

// Endpoints starts echo, TLS and HTTP/3 servers.
type Endpoints struct {
	lab     *host.Lab
	network *Network
	fleet   *fleet.Fleet
	agents  map[string]*Daemon // a server without one may wait for its file
	random  *rand.Rand
}

// StartEchoes starts an echo server for a service on every server.
func (e *Endpoints) StartEchoes(target string) {
	for _, node := range names(ServerName, len(e.network.Servers)) {
		e.startEcho(node, target, node)
	}
}

// StartOutside starts an echo server on every server that clients reach through functions. It answers with its clients' ports:
// those of the functions.
func (e *Endpoints) StartOutside(port int) {
	for i := e.network.Functions; i < len(e.network.Servers); i++ {
		e.startEcho(ServerName(i+1), netip.AddrPortFrom(e.network.ServerAddress(i+1, false), uint16(port)).String(), traffic.EchoPort)
	}
}

func (e *Endpoints) startEcho(node, target, name string) {
	echo := script.Must(e.lab.Start(host.Spawn{Node: node, Program: e.lab.Processes, Arguments: []string{process.Peer, process.Echo, target, name}}))
	echo.Await(echo.String()+" listens", func() error { return e.exchange(node, target, []byte("?")) })
}

// exchange sends one datagram to a server of a node and waits for an answer.
func (e *Endpoints) exchange(node, target string, datagram []byte) error {
	return e.lab.Space(node).Do(func() error {
		socket, err := net.Dial("udp", target)
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
	})
}

// StartHTTP3 starts an HTTP/3 server for the trial's service on every server. With affinity quic it makes connection
// ids by the file of the server's agent, and waits for that where there is none yet. Servers without a certificate make
// one, and share the key of their tickets.
func (e *Endpoints) StartHTTP3(retry bool, certificate string) {
	var tickets []byte
	if certificate == "" {
		tickets = binary.NativeEndian.AppendUint64(make([]byte, 24), e.random.Uint64())
	}
	for _, node := range names(ServerName, len(e.network.Servers)) {
		options := http3Options(e.lab, e.fleet, node)
		options.Retry, options.Tickets, options.Certificate = retry, tickets, certificate
		p := e.lab.StartPeer(process.HTTP3, host.Spawn{Node: node}, options)
		if e.agents[node] != nil || options.IDs == "" {
			e.awaitHTTP3(node, p.Died)
		}
	}
}

// http3Options are those of a server of the trial's service.
func http3Options(lab *host.Lab, fleet *fleet.Fleet, node string) *http3.Options {
	one := fleet.Services[0]
	options := &http3.Options{Address: one.Target(), Server: node}
	if one.Affinity == model.AffinityQUIC {
		options.IDs = idsFile(lab, node, one.Name)
	}
	return options
}

// AwaitHTTP3 waits until application servers serve the trial's service over QUIC.
func (e *Endpoints) AwaitHTTP3() {
	for _, node := range names(ServerName, len(e.network.Servers)) {
		e.awaitHTTP3(node, e.lab.Deaths)
	}
}

// awaitHTTP3 waits until a server of a node lists the versions of QUIC that it has.
func (e *Endpoints) awaitHTTP3(node string, died func() error) {
	clientHello := (&check.Target{Health: model.Health{Check: model.CheckQUIC}}).Hello(e.random.Float64)
	await.Until(e.lab.Context, await.Deadline, node+" serves HTTP/3", func() error {
		if err := died(); err != nil {
			return await.Stop(err)
		}
		return e.exchange(node, e.fleet.Target(), clientHello)
	})
}

// StartTLS starts a TLS server for the trial's service on every server. With tickets it makes session tickets by the
// file of the server's agent, and waits for that where there is none yet; without, they name nobody. With retries it asks
// clients for another key share.
func (e *Endpoints) StartTLS(tickets, retries bool) {
	one := e.fleet.Services[0]
	for _, node := range names(ServerName, len(e.network.Servers)) {
		options := &session.Server{Address: one.Target(), Name: node, Retries: retries}
		if tickets {
			options.Tickets = ticketFile(e.lab, node, one.Name)
		}
		p := e.lab.StartPeer(process.TLS, host.Spawn{Node: node}, options)
		if e.agents[node] != nil {
			p.AwaitPort(netip.MustParseAddrPort(one.Target()))
		}
	}
}
