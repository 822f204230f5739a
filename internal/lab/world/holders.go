// Connections whose two ends the lab itself holds: they say nothing unless they are told to.
package world

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/pace"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// HolderPort is where servers accept them.
const HolderPort = 7000

// Holder is one of them.
type Holder struct {
	Client, Server *net.TCPConn
	At             string // server
}

// Holders are made by listeners on all servers, which echo.
type Holders struct {
	trial     *Trial
	vip       netip.AddrPort
	listeners []net.Listener
	accepted  chan Holder // without the client's end
	all       []Holder
}

// NewHolders has all servers listen on the VIP of the first service.
func (t *Trial) NewHolders() *Holders {
	h := &Holders{trial: t, vip: netip.AddrPortFrom(t.Topology.VIPs[0], HolderPort), accepted: make(chan Holder)}
	for i := range t.Topology.Servers {
		name := ServerName(i + 1)
		err := t.Space(name).Do(func() error {
			config := net.ListenConfig{KeepAlive: -1}
			config.SetMultipathTCP(false) // its sockets' options are those of plain TCP
			listener, err := config.Listen(t.Context, "tcp", h.vip.String())
			if err == nil {
				h.listeners = append(h.listeners, listener)
				go h.accept(listener, name)
			}
			return err
		})
		if err != nil {
			h.Close()
			script.Check(fmt.Errorf("listen on %s: %w", name, err))
		}
	}
	return h
}

func (h *Holders) accept(listener net.Listener, name string) {
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
		case h.accepted <- Holder{Server: conn.(*net.TCPConn), At: name}:
		case <-h.trial.Context.Done():
			return
		}
	}
}

// Close ends them all.
func (h *Holders) Close() {
	for _, listener := range h.listeners {
		listener.Close()
	}
	for _, one := range h.all {
		one.Client.Close()
		one.Server.Close()
	}
}

// Open makes a connection, which has said something.
func (h *Holders) Open() (one Holder, err error) {
	ctx, cancel := pace.WithTimeout(h.trial.Context, Stall)
	defer cancel()
	var client net.Conn
	err = h.trial.Space(ClientNode).Do(func() error {
		dialer := net.Dialer{KeepAlive: -1}
		dialer.SetMultipathTCP(false)
		client, err = dialer.DialContext(ctx, "tcp", h.vip.String())
		return err
	})
	if err != nil {
		return one, err
	}
	for one.Server == nil || one.Server.RemoteAddr().String() != client.LocalAddr().String() {
		select {
		case one = <-h.accepted:
		case <-ctx.Done():
			return one, fmt.Errorf("no server has accepted %v: %w", client.LocalAddr(), context.Cause(ctx))
		}
	}
	one.Client = client.(*net.TCPConn)
	h.all = append(h.all, one)
	return one, one.Talk()
}

// OpenAt makes connections until one is at the given server, which it returns; the others end.
func (h *Holders) OpenAt(server string) Holder {
	for {
		one, err := h.Open()
		if err != nil || one.At == server {
			script.Check(err)
			return one
		}
		one.Client.Close()
	}
}

// Talk sends a little and waits until it is back.
func (o Holder) Talk() error {
	if err := o.Client.SetDeadline(time.Now().Add(Stall)); err != nil {
		return err
	}
	said := []byte{'?'}
	if _, err := o.Client.Write(said); err != nil {
		return err
	}
	_, err := io.ReadFull(o.Client, said)
	return err
}

// KeepAlive makes one end probe the other at an interval of a second.
func KeepAlive(end *net.TCPConn) error {
	return end.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 60})
}
