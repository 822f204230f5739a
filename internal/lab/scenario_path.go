// Scenarios about the path: tunnels, MTU, fragments, loss, SYN cookies, the wrap of the cookie's clock.
package lab

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/linux/datapath"
)

// runForwards: every way to a server carries HTTP in both directions.
func runForwards(s *stage) error {
	for _, way := range []struct {
		name, vip, forward string
		crossFamily        bool
	}{
		{"l2 v4", vip4, "l2", false}, {"l2 v6", vip6, "l2", false},
		{"ipip v4 in v4", vip4, "ipip", false}, {"ipip v6 in v6", vip6, "ipip", false},
		{"ipip v4 in v6", vip4, "ipip", true}, {"ipip v6 in v4", vip6, "ipip", true},
		{"gue v4 in v4", vip4, "gue", false}, {"gue v6 in v6", vip6, "gue", false},
	} {
		one := cookieService(way.vip)
		one.Forward, one.crossFamily = way.forward, way.crossFamily
		outcome, err := s.trial(setup{
			name: way.name, services: []*service{one}, topology: Topology{LBs: 1, Servers: make([]ServerNode, 2)},
		}, func(t *trial) error { return t.exchange(100, 200_000) })
		if err != nil {
			return err
		}
		s.unbroken(outcome)
	}
	return nil
}

// exchange runs a fixed number of connections to their end.
func (t *trial) exchange(connections int, bytes int64) error {
	running, err := t.generate(exchanges(t.target(), connections, bytes))
	if err != nil {
		return err
	}
	return running.wait(t.ctx)
}

// runPMTU: uploads to a server behind a smaller MTU, downloads to clients behind one.
func runPMTU(s *stage) error {
	const smaller = 1400
	for _, vip := range []string{vip4, vip6} {
		topologies := []struct {
			name     string
			topology Topology
		}{
			{"server behind 1400", Topology{LBs: 2, Servers: []ServerNode{{FarMTU: smaller}, {FarMTU: smaller}}}},
			{"server behind 1400 that no route knows of", Topology{
				LBs: 2, Servers: []ServerNode{{FarMTU: smaller}, {FarMTU: smaller}}, RoutesHideMTU: true}},
			{"clients behind 1400", Topology{LBs: 2, Servers: make([]ServerNode, 3), ClientMTU: smaller}},
		}
		for _, one := range topologies {
			outcome, err := s.trial(setup{
				name: one.name + " to " + vip, services: []*service{cookieService(vip)}, topology: one.topology,
			}, func(t *trial) error { return t.exchange(60, 1_000_000) })
			if err != nil {
				return err
			}
			s.unbroken(outcome)
		}
	}
	return nil
}

// runFragments: datagrams larger than the MTU reach one server whole.
func runFragments(s *stage) error {
	for _, vip := range []string{vip4, vip6} {
		one := &service{Name: "echo", VIP: vip, Protocol: "udp", Ports: []uint16{4000}}
		outcome, err := s.trial(setup{
			name: "udp to " + vip, services: []*service{one}, topology: Topology{LBs: 2, Servers: make([]ServerNode, 3)},
		}, func(t *trial) error {
			if err := t.startEchoes(); err != nil {
				return err
			}
			running, err := t.generate(traffic.Flow{
				// Few at once: nobody repeats a datagram that a full queue of the lab's links has dropped.
				Name: "datagrams", Target: t.target(), UDP: true, Count: 200, Concurrent: 4,
				Requests: []traffic.Request{{Bytes: 100}, {Bytes: 3000}, {Bytes: 1400}, {Bytes: 9000}},
			})
			if err != nil {
				return err
			}
			return running.wait(t.ctx)
		})
		if err != nil {
			return err
		}
		s.unbroken(outcome)
	}
	return nil
}

// startEchoes starts an echo server for the trial's service on every server.
func (t *trial) startEchoes() error {
	address := netip.MustParseAddrPort(t.target())
	for i := range t.topo.Servers {
		node := serverName(i + 1)
		echo, err := t.start(spawn{node: node, program: t.Processes, arguments: []string{process.Echo, address.String(), node}})
		if err != nil {
			return err
		}
		err = await(t.ctx, daemonDeadline, echo.name+" listens", func() error {
			if err := echo.died(); err != nil {
				return stopWaiting(err)
			}
			return t.space(node).Do(func() error { return askEcho(address) })
		})
		if err != nil {
			return err
		}
	}
	return nil
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

// runSYNLoss: handshakes whose SYN or SYN-ACK is lost are completed by a repetition, whatever server it reaches.
func runSYNLoss(s *stage) error {
	for _, one := range []struct {
		name         string
		client, back datapath.LinkFaults
		delay        time.Duration
	}{
		{"first SYN lost", datapath.LinkFaults{DropSYNsPerFlow: 1}, datapath.LinkFaults{}, 0},
		{"first SYN-ACK lost", datapath.LinkFaults{}, datapath.LinkFaults{DropSYNACKsPerFlow: 1}, 0},
		{"two SYN-ACKs lost", datapath.LinkFaults{}, datapath.LinkFaults{DropSYNACKsPerFlow: 2}, 0},
		{"2 % of everything lost, 40 ms", datapath.LinkFaults{DropPermille: 20}, datapath.LinkFaults{DropPermille: 20}, 20 * time.Millisecond},
	} {
		outcome, err := s.trial(setup{
			name: one.name, services: []*service{cookieService(vip4)},
			topology: Topology{LBs: 2, Servers: make([]ServerNode, 4), ClientDelay: one.delay},
		}, func(t *trial) error {
			if err := t.lose(clientNode, "eth0", one.client); err != nil {
				return err
			}
			if err := t.lose(routerNode, clientNode, one.back); err != nil {
				return err
			}
			return t.exchange(100, 50_000)
		})
		if err != nil {
			return err
		}
		s.unbroken(outcome)
		var lost uint64
		for _, losses := range outcome.Losses {
			lost += losses.DroppedRandom + losses.DroppedSYNs + losses.DroppedSYNACKs
		}
		s.result.expect(lost > 0, "%s: nothing was lost", one.name)
	}
	return nil
}

// runSYNCookies: servers that answer every SYN with a SYN cookie.
func runSYNCookies(s *stage) error {
	outcome, err := s.trial(setup{
		name: "cookie", members: []int{1, 2, 3, 4}, services: []*service{cookieService(vip4)},
		topology: Topology{LBs: 2, Servers: servers(5, map[string]string{"net.ipv4.tcp_syncookies": "2"})},
	}, poolChanges)
	if err != nil {
		return err
	}
	s.unbroken(outcome)
	var received uint64
	for _, counters := range outcome.TCP {
		received += counters["SyncookiesRecv"]
	}
	s.result.expect(received > 0, "no server accepted a SYN cookie")
	return nil
}

// runWrap: bulk transfers, and connections that speak now and then, across the wrap of the cookie's
// clock: 2^(32-16) ms with the widest cookie, and with the default one if there is time.
func runWrap(s *stage) error {
	length := s.length(75 * time.Second)
	one := cookieService(vip4)
	one.CookieBits = 16
	if length > wrapSeconds(14)*time.Second {
		one.CookieBits = 14
	}
	outcome, err := s.trial(setup{
		name: fmt.Sprintf("cookie of %d bits", one.CookieBits), services: []*service{one}, topology: Topology{LBs: 2, Servers: make([]ServerNode, 3)},
	}, func(t *trial) error {
		const rate = 2 << 20
		seconds := int64(length.Seconds())
		running, err := t.generate(
			traffic.Flow{Name: "bulk", Target: t.target(), Count: 6, Concurrent: 6,
				Requests: []traffic.Request{{Path: pathSlow(rate), Bytes: rate * seconds}}},
			traffic.Flow{Name: "now-and-then", Target: t.target(), Count: 12, Concurrent: 12, Requests: []traffic.Request{
				{Path: pathName}, {Path: pathName, Pause: length / 2}, {Path: pathBlob, Bytes: 50_000, Pause: length / 2}}})
		if err != nil {
			return err
		}
		return running.wait(t.ctx)
	})
	if err != nil {
		return err
	}
	s.unbroken(outcome)
	s.result.expect(outcome.LongestSecond > float64(wrapSeconds(one.CookieBits)), "the longest transfer lasted %.0f s and saw no wrap", outcome.LongestSecond)
	return nil
}

// wrapSeconds is how long the clock above a cookie runs until it wraps.
func wrapSeconds(cookieBits uint8) time.Duration { return 1<<(32-cookieBits)/1000 + 1 }
