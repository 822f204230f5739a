// Bounds of what one peer takes of the metrics port.
package listen

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// Bounds of the metrics port, which anybody in reach may connect to: a peer that takes all of its share leaves those of others alone.
const (
	metricsPerPeer = 16  // connections at once from an address
	metricsTotal   = 256 // from all

	metricsWriteTimeout = 30 * time.Second // from a request's header to the end of its answer
)

// metricsListener closes connections above the bounds as soon as they come.
type metricsListener struct {
	net.Listener

	mutex sync.Mutex
	peers map[netip.Addr]int // open connections
	total int
}

func limitMetrics(listener net.Listener) net.Listener {
	return &metricsListener{Listener: listener, peers: map[netip.Addr]int{}}
}

func (l *metricsListener) Accept() (net.Conn, error) {
	for {
		connection, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer := connection.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		if l.enter(peer) {
			return &metricsConnection{Conn: connection, leave: sync.OnceFunc(func() { l.leave(peer) })}, nil
		}
		connection.Close()
	}
}

func (l *metricsListener) enter(peer netip.Addr) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.total >= metricsTotal || l.peers[peer] >= metricsPerPeer {
		return false
	}
	l.total++
	l.peers[peer]++
	return true
}

func (l *metricsListener) leave(peer netip.Addr) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.total--
	if l.peers[peer]--; l.peers[peer] == 0 {
		delete(l.peers, peer)
	}
}

// metricsConnection gives its place back when it is closed.
type metricsConnection struct {
	net.Conn
	leave func()
}

func (c *metricsConnection) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
