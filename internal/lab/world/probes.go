// Probes: datagrams that come and go all the time, of which some are lost.
package world

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Implementation constants.
const (
	probePeriod   = 10 * time.Millisecond // of each flow
	probePatience = time.Second           // answers take a millisecond
	probeFlows    = 32                    // of ports of their own: each load balancer has some
)

// Probes go from the client to who sends them back.
type Probes struct {
	clients *Clients
	flows   []*probeFlow
	stop    chan struct{}
	wait    sync.WaitGroup
}

type probeFlow struct {
	socket *net.UDPConn
	mutex  sync.Mutex
	sent   []time.Time
	came   []bool
}

// Probe begins. The servers of a UDP service send probes back.
func (c *Clients) Probe(service netip.AddrPort) *Probes {
	for _, name := range names(ServerName, len(c.network.Servers)) {
		script.Check(c.network.lab.Space(name).Do(func() error {
			socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(service))
			if err == nil {
				go sendBack(socket)
				c.network.lab.OnClose(func() { socket.Close() })
			}
			return err
		}))
	}
	return c.ProbeEcho(service)
}

// ProbeEcho begins, to who sends datagrams back already, with anything in front of them.
func (c *Clients) ProbeEcho(service netip.AddrPort) *Probes {
	p := &Probes{clients: c, stop: make(chan struct{})}
	source := netip.MustParseAddr(c.network.SourceAddresses(service.Addr().Is6())[0])
	for i := range probeFlows {
		flow := &probeFlow{}
		script.Check(c.network.lab.Space(ClientNode).Do(func() (err error) {
			flow.socket, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, uint16(20000+i))), net.UDPAddrFromAddrPort(service))
			return err
		}))
		p.flows = append(p.flows, flow)
		p.wait.Go(func() { flow.send(p.stop) })
		p.wait.Go(flow.receive)
	}
	c.network.lab.OnClose(p.Stop)
	await.Until(c.network.lab.Context, await.Deadline, "probes come back", func() error {
		for i, flow := range p.flows {
			flow.mutex.Lock()
			n := len(flow.came)
			good := n > 0 && flow.came[max(0, n-5)]
			flow.mutex.Unlock()
			if !good {
				return fmt.Errorf("flow %d has none", i)
			}
		}
		return nil
	})
	return p
}

func sendBack(socket *net.UDPConn) {
	buffer := make([]byte, 64)
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			socket.WriteToUDPAddrPort(buffer[:n], from)
		}
	}
}

func (f *probeFlow) send(stop chan struct{}) {
	ticker := time.NewTicker(probePeriod)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			f.socket.Close()
			return
		case now := <-ticker.C:
			f.mutex.Lock()
			number := len(f.sent)
			f.sent, f.came = append(f.sent, now), append(f.came, false)
			f.mutex.Unlock()
			f.socket.Write(binary.BigEndian.AppendUint64(nil, uint64(number))) // what an error of an earlier one says is seen in its answer
		}
	}
}

func (f *probeFlow) receive() {
	buffer := make([]byte, 64)
	for {
		n, err := f.socket.Read(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < 8 {
			continue
		}
		f.mutex.Lock()
		if number := binary.BigEndian.Uint64(buffer[n-8:]); number < uint64(len(f.came)) {
			f.came[number] = true
		}
		f.mutex.Unlock()
	}
}

// Stop ends them.
func (p *Probes) Stop() {
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	p.wait.Wait()
}

// AwaitSent waits until so many have been sent since begin.
func (p *Probes) AwaitSent(begin time.Time, count int) {
	await.Until(p.clients.network.lab.Context, await.Deadline, fmt.Sprintf("%d probes are sent", count), func() error {
		if _, sent, _ := p.count(begin, time.Now()); sent < count {
			return fmt.Errorf("%d are", sent)
		}
		return nil
	})
}

// Lost counts those sent since begin that did not come back, of how many; the last of them was sent outage after begin.
func (p *Probes) Lost(begin time.Time) (lost, sent int, outage time.Duration) {
	return p.LostBetween(begin, time.Now())
}

// LostBetween counts those sent from begin until then.
func (p *Probes) LostBetween(begin, until time.Time) (lost, sent int, outage time.Duration) {
	await.Until(p.clients.network.lab.Context, await.Deadline, "the last probes are back", func() error {
		lost, sent, outage = p.count(begin, until)
		if lost > 0 && time.Since(until) < probePatience {
			return fmt.Errorf("%d are missing", lost)
		}
		return nil
	})
	return lost, sent, outage
}

func (p *Probes) count(begin, until time.Time) (lost, sent int, outage time.Duration) {
	for _, f := range p.flows {
		f.mutex.Lock()
		for i, at := range f.sent {
			if at.Before(begin) || at.After(until) {
				continue
			}
			if sent++; !f.came[i] {
				lost++
				outage = max(outage, at.Sub(begin))
			}
		}
		f.mutex.Unlock()
	}
	return lost, sent, outage
}
