package checkroute_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/checkroute"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// echo answers datagrams at the VIP with the name and their length.
func (n *checkNet) echo(name string, space *netspace.Space, vip netip.Addr) {
	n.Helper()
	var socket net.PacketConn
	progtest.Check(n, space.Do(func() (err error) {
		socket, err = net.ListenPacket("udp", netip.AddrPortFrom(vip, plainPort).String())
		return err
	}))
	n.Cleanup(func() { socket.Close() })
	go func() {
		buffer := make([]byte, 4096)
		for {
			length, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = socket.WriteTo(fmt.Appendf(nil, "%s has %d bytes", name, length), from)
		}
	}()
}

func TestChecksByUDPReachTheirServerByTheWayOfTraffic(t *testing.T) {
	n := newCheckNet(t)
	for _, vip := range n.servers[0].vips {
		n.echo("router", n.router, vip)
		for i, r := range n.servers {
			n.echo(n.name(i), r.server, vip)
		}
	}
	for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE} {
		for _, vip := range n.servers[0].vips {
			for _, ipv6 := range []bool{false, true} {
				n.set(vip, ipv6, func(target *checkroute.Target) { target.Forward = forward })
				for i := range n.servers {
					ctx, cancel := context.WithTimeout(t.Context(), progtest.Deadline)
					conn, remarks, err := n.dial(ctx, n.key(i), plainPort, make([]byte, 1200))
					cancel()
					if err != nil || remarks.Direct != "" {
						t.Fatalf("%s to %s, server IPv6 %v: %+v, %v", forward, vip, ipv6, remarks, err)
					}
					progtest.Check(t, conn.SetDeadline(time.Now().Add(progtest.Deadline)))
					answer := make([]byte, 100)
					length, err := conn.Read(answer)
					if want := n.name(i) + " has 1200 bytes"; err != nil || string(answer[:length]) != want {
						t.Errorf("%s to %s, server IPv6 %v: %q (%v), not %q", forward, vip, ipv6, answer[:length], err, want)
					}
					conn.Close()
				}
			}
		}
	}
}
