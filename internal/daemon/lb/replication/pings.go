package replication

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Implementation constants: a node that has died is missed within pingPeriod * (missedPings + 1): 720 ms.
const (
	pingPeriod  = 120 * time.Millisecond
	missedPings = 5
	pongWait    = 2 * time.Millisecond // that is waited for more of them, once the time has come to look
	pongBytes   = 128
	pongsMax    = 1000 // that are looked at, at once: whoever floods the port holds nothing up
)

// pings asks the data paths of other load balancers whether they are there. They answer without their daemons.
type pings struct {
	mutex sync.Mutex
	peers map[Peer]*pinged
	next  uint32 // number of the ping
}

// pinged is what is known of a peer.
type pinged struct {
	first, last uint32 // pings that were sent
	heard       uint32 // the last that was answered; 0: none
	view        uint32 // version of the ring that the peer went by then; 0: none, or its software does not say
}

func (p *pinged) missed() uint32 {
	if p.heard == 0 {
		return p.last - p.first + 1
	}
	return p.last - p.heard
}

// heard returns the numbers of who answers, and of who does not.
func (p *pings) heard() (heard, silent []uint32) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for peer, known := range p.peers {
		switch missed := known.missed(); {
		case missed >= missedPings:
			silent = append(silent, uint32(peer.Number))
		case known.heard != 0:
			heard = append(heard, uint32(peer.Number))
		}
	}
	slices.Sort(heard)
	slices.Sort(silent)
	return heard, silent
}

// views returns the version of the ring that each peer goes by that answers and says so.
func (p *pings) views() map[Peer]uint32 {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	views := map[Peer]uint32{}
	for peer, known := range p.peers {
		if known.heard != 0 && known.missed() < missedPings && known.view != 0 {
			views[peer] = known.view
		}
	}
	return views
}

// ping asks the others again and again until ctx ends.
func (r *Replication) ping(ctx context.Context) {
	tick := time.NewTicker(pingPeriod)
	defer tick.Stop()
	var socket *net.UDPConn
	var bound netip.Addr
	defer func() {
		if socket != nil {
			socket.Close()
		}
	}()
	said := ""
	var lastHeard, lastSilent []uint32
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		state, from := r.state.Load(), r.OwnAddress().Addr()
		if state.Number == 0 || !from.IsValid() {
			continue
		}
		if socket == nil || bound != from {
			if socket != nil {
				socket.Close()
			}
			var err error
			if socket, err = listenPongs(ctx, from); err != nil {
				if socket = nil; err.Error() != said {
					said = err.Error()
					r.Log.Error("other load balancers cannot be asked whether they are there", "error", err)
				}
				continue
			}
			bound = from
		}
		keys := r.Tables.Now().Running.Keys
		r.listen(socket, state, &keys)
		r.behind.note(time.Now(), r.path.ViewVersion(), r.pings.views())
		heard, silent := r.pings.heard()
		if !slices.Equal(heard, lastHeard) || !slices.Equal(silent, lastSilent) {
			lastHeard, lastSilent = heard, silent
			r.wakeReporter()
		}
		r.ask(socket, state, &keys)
	}
}

// listenPongs is a socket at an address of this host. Pongs by IPv6 have no checksum, which Linux would drop (RFC 6935); they have a MAC.
func listenPongs(ctx context.Context, at netip.Addr) (*net.UDPConn, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if at.Is6() {
			failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1) })
			err = errors.Join(failed, err)
		}
		return err
	}}
	socket, err := config.ListenPacket(ctx, "udp", netip.AddrPortFrom(at, 0).String())
	if err != nil {
		return nil, err
	}
	return socket.(*net.UDPConn), nil
}

func peerKey(keys *model.Keys, epoch uint32) (peermessage.Key, bool) {
	fleet, known := keys.Cookie[epoch]
	k0, k1 := plan.PeerKey(fleet)
	return peermessage.Key{K0: k0, K1: k1, Epoch: epoch}, known
}

// ask sends a ping to everybody.
func (r *Replication) ask(socket *net.UDPConn, state *State, keys *model.Keys) {
	key, known := peerKey(keys, keys.Current)
	if !known {
		return
	}
	p := &r.pings
	p.mutex.Lock()
	p.next = max(1, p.next+1)
	number, before := p.next, p.peers
	p.peers = map[Peer]*pinged{}
	var to []Peer
	for _, peer := range state.Peers {
		if peer.Number == state.Number {
			continue
		}
		known := before[peer]
		if known == nil {
			known = &pinged{first: number}
		}
		known.last = number
		p.peers[peer] = known
		to = append(to, peer)
	}
	p.mutex.Unlock()
	for _, peer := range to {
		m := peermessage.Message{Kind: peermessage.Ping, Forwarder: state.Number, Chain: number}
		socket.WriteToUDPAddrPort(m.Append(nil, key, 0, peer.Number, false), netip.AddrPortFrom(peer.Address.Addr(), peermessage.Port)) // lost: it is missed
	}
}

// listen takes the answers that are there. A process that had to wait for the CPU looks at what has come meanwhile before it misses anybody.
func (r *Replication) listen(socket *net.UDPConn, state *State, keys *model.Keys) {
	var text [pongBytes]byte
	for range pongsMax {
		socket.SetReadDeadline(time.Now().Add(pongWait))
		n, from, err := socket.ReadFromUDPAddrPort(text[:])
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			continue // an error of a ping before
		}
		m, ok := peermessage.Parse(text[:n])
		of := func(parity uint32) (peermessage.Key, bool) {
			for _, epoch := range keys.Epochs() {
				if epoch&1 == parity {
					return peerKey(keys, epoch)
				}
			}
			return peermessage.Key{}, false
		}
		if ok && m.Kind == peermessage.Pong && m.Forwarder == state.Number && peermessage.IsGenuine(text[:n], of, 0, state.Number) {
			r.pings.hear(m.Last, m.Chain, from.Addr().Unmap(), uint32(m.Owner)<<16|uint32(m.Proposed))
		}
	}
}

// hear takes an answer. One that was heard before, or is older, says nothing.
func (p *pings) hear(number uint16, ping uint32, from netip.Addr, view uint32) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for peer, known := range p.peers {
		if peer.Number == number && peer.Address.Addr() == from && ping > known.heard && ping >= known.first && ping <= known.last && known.last-ping < missedPings {
			known.heard, known.view = ping, view
		}
	}
}
