// Connections whose two ends the lab itself holds: they say nothing unless they are told to.
package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

const holderPort = 7000

// holder is one of them.
type holder struct {
	client, server *net.TCPConn
	at             string // server
}

// holders are made by listeners on all servers, which echo.
type holders struct {
	trial     *trial
	vip       netip.AddrPort
	listeners []net.Listener
	accepted  chan holder // without the client's end
	all       []holder
}

// newHolders has all servers listen on the VIP of the first service.
func (t *trial) newHolders() (*holders, error) {
	h := &holders{trial: t, vip: netip.AddrPortFrom(t.topo.VIPs[0], holderPort), accepted: make(chan holder)}
	for i := range t.topo.Servers {
		name := serverName(i + 1)
		err := t.space(name).Do(func() error {
			config := net.ListenConfig{KeepAlive: -1}
			config.SetMultipathTCP(false) // its sockets' options are those of plain TCP
			listener, err := config.Listen(t.ctx, "tcp", h.vip.String())
			if err == nil {
				h.listeners = append(h.listeners, listener)
				go h.accept(listener, name)
			}
			return err
		})
		if err != nil {
			h.close()
			return nil, fmt.Errorf("listen on %s: %w", name, err)
		}
	}
	return h, nil
}

func (h *holders) accept(listener net.Listener, name string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}()
		select {
		case h.accepted <- holder{server: conn.(*net.TCPConn), at: name}:
		case <-h.trial.ctx.Done():
			return
		}
	}
}

func (h *holders) close() {
	for _, listener := range h.listeners {
		listener.Close()
	}
	for _, one := range h.all {
		one.client.Close()
		one.server.Close()
	}
}

// open makes a connection, which has said something.
func (h *holders) open() (one holder, err error) {
	ctx, cancel := withMachineTime(h.trial.ctx, stall)
	defer cancel()
	var client net.Conn
	err = h.trial.space(clientNode).Do(func() error {
		dialer := net.Dialer{KeepAlive: -1}
		dialer.SetMultipathTCP(false)
		client, err = dialer.DialContext(ctx, "tcp", h.vip.String())
		return err
	})
	if err != nil {
		return one, err
	}
	for one.server == nil || one.server.RemoteAddr().String() != client.LocalAddr().String() {
		select {
		case one = <-h.accepted:
		case <-ctx.Done():
			return one, fmt.Errorf("no server has accepted %v: %w", client.LocalAddr(), context.Cause(ctx))
		}
	}
	one.client = client.(*net.TCPConn)
	h.all = append(h.all, one)
	return one, one.talk()
}

// openAt makes connections until one is at the given server, which it returns; the others end.
func (h *holders) openAt(server string) (holder, error) {
	for {
		one, err := h.open()
		if err != nil || one.at == server {
			return one, err
		}
		one.client.Close()
	}
}

// talk sends a little and waits until it is back.
func (o holder) talk() error {
	if err := o.client.SetDeadline(time.Now().Add(stall)); err != nil {
		return err
	}
	said := []byte{'?'}
	if _, err := o.client.Write(said); err != nil {
		return err
	}
	_, err := io.ReadFull(o.client, said)
	return err
}

// keepAlive makes one end probe the other at an interval of a second.
func keepAlive(end *net.TCPConn) error {
	return end.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 60})
}
