// Idle clients: connections whose two ends the lab itself holds, on which nothing is sent unless a scenario does.
package world

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// IdlePort is where servers accept them.
const IdlePort = 7000

// IdleClient is one of them.
type IdleClient struct {
	Client, Server *net.TCPConn
	At             string // server
}

// IdleClients are made by listeners on all servers, which echo.
type IdleClients struct {
	clients   *Clients
	vip       netip.AddrPort
	listeners []net.Listener
	accepted  chan IdleClient // without the client's end
	all       []IdleClient
}

// NewIdleClients has all servers listen on the VIP of the first service.
func (c *Clients) NewIdleClients() *IdleClients {
	idle := &IdleClients{clients: c, vip: netip.AddrPortFrom(c.network.VIPs[0], IdlePort), accepted: make(chan IdleClient)}
	for _, name := range names(ServerName, len(c.network.Servers)) {
		err := c.network.lab.Space(name).Do(func() error {
			config := net.ListenConfig{KeepAlive: -1}
			config.SetMultipathTCP(false) // its sockets' options are those of plain TCP
			listener, err := config.Listen(c.network.lab.Context, "tcp", idle.vip.String())
			if err == nil {
				idle.listeners = append(idle.listeners, listener)
				go idle.accept(listener, name)
			}
			return err
		})
		if err != nil {
			idle.Close()
			script.Check(fmt.Errorf("listen on %s: %w", name, err))
		}
	}
	return idle
}

func (i *IdleClients) accept(listener net.Listener, name string) {
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
		case i.accepted <- IdleClient{Server: conn.(*net.TCPConn), At: name}:
		case <-i.clients.network.lab.Context.Done():
			return
		}
	}
}

// Close ends them all.
func (i *IdleClients) Close() {
	for _, listener := range i.listeners {
		listener.Close()
	}
	for _, one := range i.all {
		one.Client.Close()
		one.Server.Close()
	}
}

// Open makes a connection, on which something has been sent.
func (i *IdleClients) Open() (one IdleClient, err error) {
	ctx, cancel := loadmeter.WithTimeout(i.clients.network.lab.Context, Stall)
	defer cancel()
	var client net.Conn
	err = i.clients.network.lab.Space(ClientNode).Do(func() error {
		dialer := net.Dialer{KeepAlive: -1}
		dialer.SetMultipathTCP(false)
		client, err = dialer.DialContext(ctx, "tcp", i.vip.String())
		return err
	})
	if err != nil {
		return one, err
	}
	for one.Server == nil || one.Server.RemoteAddr().String() != client.LocalAddr().String() {
		select {
		case one = <-i.accepted:
		case <-ctx.Done():
			return one, fmt.Errorf("no server has accepted %v: %w", client.LocalAddr(), context.Cause(ctx))
		}
	}
	one.Client = client.(*net.TCPConn)
	i.all = append(i.all, one)
	return one, one.Talk()
}

// OpenAt makes connections until one is at the given server, which it returns; the others end.
func (i *IdleClients) OpenAt(server string) IdleClient {
	for {
		one, err := i.Open()
		if err != nil || one.At == server {
			script.Check(err)
			return one
		}
		one.Client.Close()
	}
}

// Talk sends a little and waits until it is back.
func (o IdleClient) Talk() error {
	if err := o.Client.SetDeadline(time.Now().Add(Stall)); err != nil {
		return err
	}
	sent := []byte{'?'}
	if _, err := o.Client.Write(sent); err != nil {
		return err
	}
	_, err := io.ReadFull(o.Client, sent)
	return err
}

// KeepAlive makes one end probe the other at an interval of a second.
func KeepAlive(end *net.TCPConn) error {
	return end.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 60})
}
