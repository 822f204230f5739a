package checkroute_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	healthcheck "github.com/ballast-lb/ballast/internal/linux/check"
	"github.com/ballast-lb/ballast/internal/linux/checkroute"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// A checkNet is a load balancer with two servers, each on a wire of its own, that have the same VIPs, and a router that the load
// balancer's routes to the VIPs lead to. The router has the VIPs too: a check that took the ordinary route would succeed there.
type checkNet struct {
	*testing.T
	lb, router *netspace.Space
	servers    []*backend
	apps       map[string]*httptest.Server // by who answers, VIP and scheme
	checks     *checkroute.Checks
	pins       string
}

// A backend is a server of a checkNet with its agent.
type backend struct {
	server *netspace.Space
	agent  *server.Server
	fleet  *model.Fleet
	vips   []netip.Addr
}

const (
	plainPort  = 80
	securePort = 443
)

func newCheckNet(t *testing.T) *checkNet {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	n := &checkNet{T: t, lb: progtest.NewSpace(t, "l"), router: progtest.NewSpace(t, "r"), apps: map[string]*httptest.Server{}}
	spaces := []*netspace.Space{progtest.NewSpace(t, "s"), progtest.NewSpace(t, "s")}
	for _, space := range append(spaces, n.lb, n.router) {
		progtest.Check(t, space.Sysctl("net/ipv6/conf/default/accept_dad", "0"))
	}
	vips := []netip.Addr{netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("2001:db8:51::10")}
	progtest.Connect(t, n.lb, "eth2", 1, n.router, "eth0", 2, 7, 1500)
	for i, gateway := range []string{"10.7.0.2", "fd07::2"} {
		progtest.Check(t, n.lb.Route(netip.PrefixFrom(vips[i], vips[i].BitLen()), 0, netspace.NextHop{Gateway: netip.MustParseAddr(gateway), Interface: "eth2"}))
		n.serve("router", n.router, vips[i])
	}
	for i, space := range spaces {
		progtest.Connect(t, n.lb, fmt.Sprintf("eth%d", i), 1, space, "eth0", 2, 9-i, 1500)
		for _, way := range [][2]string{{"10.0.0.0/8", "10.%d.0.1"}, {"fd00::/8", "fd%02d::1"}} { // as servers reach clients anywhere
			progtest.Check(t, space.Route(netip.MustParsePrefix(way[0]), 0, netspace.NextHop{Gateway: netip.MustParseAddr(fmt.Sprintf(way[1], 9-i)), Interface: "eth0"}))
		}
		r := &backend{server: space, vips: vips}
		r.fleet = &model.Fleet{Keys: model.Keys{Current: 1, Cookie: map[uint32][16]byte{1: {1, 2, 3}}}}
		for _, vip := range vips {
			r.fleet.Services = append(r.fleet.Services, model.Service{Name: vip.String(), VIP: vip, Protocol: model.ProtocolTCP,
				Ports: []uint16{plainPort, securePort}, CookieBits: 14, Affinity: model.AffinityCookie,
				Servers: []model.Server{{Name: n.name(i), ID: uint16(i + 1), Address: n.address(i, false)}}},
				model.Service{Name: "udp " + vip.String(), VIP: vip, Protocol: model.ProtocolUDP, Ports: []uint16{plainPort}, Affinity: model.AffinityHash,
					Servers: []model.Server{{Name: n.name(i), ID: uint16(i + 1), Address: n.address(i, false)}}})
			n.serve(n.name(i), space, vip)
		}
		r.agent = progtest.Attach(t, space, progtest.Pins(t), attach.XDPAuto, r.fleet)
		progtest.Check(t, r.agent.SetOwnAddresses([]netip.Addr{n.address(i, false), n.address(i, true)}))
		n.servers = append(n.servers, r)
	}
	n.pins = progtest.Pins(t)
	n.open()
	return n
}

func (n *checkNet) open() {
	progtest.Check(n, n.lb.Do(func() (err error) { n.checks, err = checkroute.Open(n.pins, nil); return err }))
	checks := n.checks
	n.Cleanup(func() { progtest.Check(n, n.lb.Do(checks.Close)) })
}

func (n *checkNet) name(server int) string { return fmt.Sprintf("server %d", server+1) }

func (n *checkNet) address(server int, ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.MustParseAddr(fmt.Sprintf("fd%02d::2", 9-server))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.%d.0.2", 9-server))
}

// serve answers HTTP and HTTPS at the VIP, which it adds, with the name.
func (n *checkNet) serve(name string, space *netspace.Space, vip netip.Addr) {
	n.Helper()
	progtest.Check(n, space.AddAddress("lo", netip.PrefixFrom(vip, vip.BitLen())))
	for _, port := range []uint16{plainPort, securePort} {
		app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			io.WriteString(w, name+strings.Repeat(".", 10000)) // several segments
		}))
		app.Listener.Close()
		progtest.Check(n, space.Do(func() (err error) {
			config := net.ListenConfig{}
			config.SetMultipathTCP(false)
			app.Listener, err = config.Listen(context.Background(), "tcp", netip.AddrPortFrom(vip, port).String())
			return err
		}))
		if port == plainPort {
			app.Start()
		} else {
			app.StartTLS()
		}
		n.Cleanup(app.Close)
		n.apps[fmt.Sprint(name, vip, port)] = app
	}
}

// path waits for the next hop to a server.
func (n *checkNet) path(address netip.Addr) (path plan.Path) {
	n.Helper()
	n.await("the neighbour "+address.String(), func() bool {
		return n.lb.Do(func() error {
			hop, err := netdev.NewResolver().Lookup(address)
			path = plan.Path{Ifindex: uint32(hop.Ifindex), VLAN: hop.VLAN, Source: hop.Source, SourceMAC: hop.SourceMAC,
				DestinationMAC: hop.Destination, MTU: hop.MTU}
			return err
		}) == nil
	})
	return path
}

func (n *checkNet) await(what string, done func() bool) {
	n.Helper()
	for end := time.Now().Add(progtest.Deadline); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			n.Fatalf("%s: not within %s", what, progtest.Deadline)
		}
	}
}

// set makes targets of both servers under the key "web" and waits for the way to the VIPs.
func (n *checkNet) set(vip netip.Addr, ipv6 bool, change func(*checkroute.Target)) {
	n.Helper()
	n.path(netip.MustParseAddr("10.7.0.2"))
	n.path(netip.MustParseAddr("fd07::2"))
	targets := map[checkroute.Key]checkroute.Target{}
	for i := range n.servers {
		address := n.address(i, ipv6)
		target := checkroute.Target{VIP: vip, Server: address, Forward: model.ForwardIPIP, Path: n.path(address)}
		if change != nil {
			change(&target)
		}
		targets[n.key(i)] = target
	}
	progtest.Check(n, n.lb.Do(func() error { return n.checks.Set(targets) }))
}

func (n *checkNet) key(server int) checkroute.Key {
	return checkroute.Key{Service: "web", ID: uint16(server + 1)}
}

func (n *checkNet) dial(ctx context.Context, key checkroute.Key, port uint16, hello []byte) (conn net.Conn, remarks healthcheck.Remarks, err error) {
	failed := n.lb.Do(func() error {
		conn, remarks, err = n.checks.Dial(ctx, key, port, hello)
		return nil
	})
	if err == nil {
		err = failed
	}
	return conn, remarks, err
}

// fetch asks who answers a check.
func (n *checkNet) fetch(server int, port uint16) (who string, err error) {
	ctx, cancel := context.WithTimeout(n.Context(), progtest.Deadline)
	defer cancel()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, remarks, err := n.dial(ctx, n.key(server), port, nil)
		if err == nil && remarks.Direct != "" {
			err = fmt.Errorf("straight: %s", remarks.Direct)
		}
		return conn, err
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, map[uint16]string{plainPort: "http", securePort: "https"}[port]+"://vip/", nil)
	if err != nil {
		return "", err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return strings.TrimRight(string(body), "."), err
}

// A ClientHello does not fit one segment: the tunnel has to be allowed for.
func TestChecksReachTheirServerByTheWayOfTraffic(t *testing.T) {
	progtest.BothWays(t, checksReachTheirServer)
}

func checksReachTheirServer(t *testing.T) {
	n := newCheckNet(t)
	n.balance(attach.XDPAuto)
	for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE} {
		for _, vip := range n.servers[0].vips {
			for _, ipv6 := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s to %s, server IPv6 %v", forward, vip, ipv6), func(t *testing.T) {
					before := progtest.Rejects(t, n.lb, n.servers[0].server)
					n.set(vip, ipv6, func(target *checkroute.Target) { target.Forward = forward })
					for i, r := range n.servers {
						marked, taken, restored := progtest.Count(t, r.agent, "egress_marked_syn_ack"), progtest.Count(t, r.agent, "decapsulated"), progtest.Count(t, r.agent, "ingress_restored")
						for _, port := range []uint16{plainPort, securePort} {
							if who, err := n.fetch(i, port); who != n.name(i) {
								t.Errorf("a check of %s on port %d is answered by %q: %v", n.name(i), port, who, err)
							}
						}
						if progtest.Count(t, r.agent, "egress_marked_syn_ack") == marked {
							t.Errorf("%s marked none of the checks' connections", n.name(i))
						}
						if progtest.Count(t, r.agent, "ingress_restored") == restored {
							t.Errorf("%s restored nothing of the checks' connections", n.name(i))
						}
						if tunnelled := progtest.Count(t, r.agent, "decapsulated") > taken; tunnelled != (forward != model.ForwardL2) {
							t.Errorf("%s was reached through a tunnel: %v", n.name(i), tunnelled)
						}
					}
					if after := progtest.Rejects(t, n.lb, n.servers[0].server); !maps.Equal(after, before) {
						t.Errorf("rejected timestamps: %v before, %v after", before, after)
					}
				})
			}
		}
	}
}

// own makes a target's cookie be looked at: by keys and, for the server's number, by that id.
func (n *checkNet) own(target *checkroute.Target, keys model.Keys, id func(server int) uint16) {
	var service model.Service
	for _, service = range n.servers[0].fleet.Services {
		if service.VIP == target.VIP {
			break
		}
	}
	read := cookie.Reader(&keys, &service, service.VIP)
	for i := range n.servers {
		if target.Server == n.address(i, target.Server.Is6()) {
			target.Owns = func(client netip.AddrPort, port uint16, timestamp uint32) bool {
				found, known := read(client, port, timestamp)
				return known && found == id(i)
			}
		}
	}
}

// Promise: The check of a server that marks with another key or id fails with the reason, and its agent reports a
// problem.
// Also held by TestAServerThatDoesNotMarkIsUnhealthyAndAProblem.
func TestAServerWhoseKeyOrIDDiffersIsSeen(t *testing.T) {
	progtest.BothWays(t, foreignCookiesAreSeen)
}

func foreignCookiesAreSeen(t *testing.T) {
	n := newCheckNet(t)
	ours := n.servers[0].fleet.Keys
	right := func(server int) uint16 { return uint16(server + 1) }
	for _, test := range []struct {
		name  string
		keys  model.Keys
		id    func(int) uint16
		wrong bool
	}{
		{"the same key and id", ours, right, false},
		{"a newer key beside it", model.Keys{Cookie: map[uint32][16]byte{1: ours.Cookie[1], 2: {9}}}, right, false},
		{"another key", model.Keys{Cookie: map[uint32][16]byte{1: {3, 2, 1}}}, right, true},
		{"no key of the epoch", model.Keys{Cookie: map[uint32][16]byte{2: {1, 2, 3}}}, right, true},
		{"the other's id", ours, func(server int) uint16 { return uint16(2 - server) }, true},
	} {
		for _, vip := range n.servers[0].vips {
			for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE} {
				n.set(vip, false, func(target *checkroute.Target) {
					target.Forward = forward
					n.own(target, test.keys, test.id)
				})
				for i := range n.servers {
					_, err := n.fetch(i, plainPort)
					if test.wrong && err == nil { // of another key's cookies one in some thousands names the server by chance
						_, err = n.fetch(i, plainPort)
					}
					if !test.wrong && err != nil || test.wrong && !errors.Is(err, checkroute.ErrForeignCookie) {
						t.Errorf("%s, %s, %s: %s: %v", test.name, forward, vip, n.name(i), err)
					}
				}
			}
		}
	}
}

// health.port: agents mark the service's ports alone, so the answers of another carry no cookie.
func TestTheCookieOfAPortThatIsNotTheServicesIsNotLookedAt(t *testing.T) {
	const other = 8081
	n := newCheckNet(t)
	vip := n.servers[0].vips[0]
	for _, r := range n.servers {
		progtest.Check(t, r.server.Do(func() error {
			config := net.ListenConfig{}
			config.SetMultipathTCP(false)
			listener, err := config.Listen(t.Context(), "tcp", netip.AddrPortFrom(vip, other).String())
			if err == nil {
				t.Cleanup(func() { listener.Close() })
			}
			return err
		}))
	}
	for _, test := range []struct {
		port uint16
		id   func(server int) uint16
		want error
	}{
		{other, func(server int) uint16 { return uint16(server + 1) }, nil},
		{plainPort, func(server int) uint16 { return uint16(server + 1) }, nil},
		{plainPort, func(server int) uint16 { return uint16(2 - server) }, checkroute.ErrForeignCookie},
	} {
		n.set(vip, false, func(target *checkroute.Target) {
			target.Forward, target.Ports = model.ForwardL2, []model.PortRange{{First: plainPort, Last: plainPort}, {First: securePort, Last: securePort}}
			n.own(target, n.servers[0].fleet.Keys, test.id)
		})
		for i := range n.servers {
			ctx, cancel := context.WithTimeout(t.Context(), progtest.Deadline)
			conn, remarks, err := n.dial(ctx, n.key(i), test.port, nil)
			cancel()
			if conn != nil {
				conn.Close()
			}
			if remarks.Direct != "" || !errors.Is(err, test.want) {
				t.Errorf("port %d of %s: %v, want %v; straight because of %q", test.port, n.name(i), err, test.want, remarks.Direct)
			}
		}
	}
}

// balance runs the load balancer on all devices, with the servers and VIPs as its own.
func (n *checkNet) balance(mode attach.XDPMode) {
	n.Helper()
	dir := progtest.Pins(n.T)
	limits := plan.Limits{Services: 4, Servers: 16, ServerIDs: 1 << 16, Slots: 1 << 16, Rounds: 1 << 10}
	lb, err := lb.Open(dir, limits)
	progtest.Check(n, err)
	n.Cleanup(func() { lb.Close() })
	want := &plan.Want{Keys: n.servers[0].fleet.Keys, Paths: map[netip.Addr]plan.Path{}}
	for _, vip := range n.servers[0].vips {
		s := model.NewService()
		s.Name, s.VIP, s.Ports = vip.String(), vip, []uint16{plainPort, securePort}
		for i := range n.servers {
			want.Paths[n.address(i, false)] = n.path(n.address(i, false))
			s.Servers = append(s.Servers, model.Server{Name: n.name(i), ID: uint16(i + 1), Address: n.address(i, false), Weight: 1})
		}
		s.ApplyDefaults()
		want.Services = append(want.Services, plan.Service{Service: s})
	}
	changes, err := plan.NewTables(limits).Update(want)
	progtest.Check(n, err)
	progtest.Check(n, lb.Apply(changes))
	for _, name := range []string{"eth0", "eth1", "eth2"} {
		progtest.Check(n, n.lb.Do(func() error {
			device, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			_, err = lb.Attach(device, mode)
			return err
		}))
	}
}

// A probing is a prober of both servers and what it has said.
type probing struct {
	mu   sync.Mutex
	told map[uint16]healthcheck.Result
	when map[uint16]time.Time
}

const (
	checkInterval = 100 * time.Millisecond
	checkFall     = 3
)

func (n *checkNet) probe(vip netip.Addr) *probing {
	p := &probing{told: map[uint16]healthcheck.Result{}, when: map[uint16]time.Time{}}
	prober := healthcheck.New(healthcheck.Options{
		NewVerdict: func(*healthcheck.Target) healthcheck.Verdict { return &health.Server{} },
		Timing:     healthcheck.Timing{First: health.First, Next: health.Next},
		Dial: func(ctx context.Context, t healthcheck.Target, port uint16, hello []byte) (net.Conn, healthcheck.Remarks, error) {
			return n.dial(ctx, checkroute.Key{Service: t.Service, ID: t.ID}, port, hello)
		},
		Changed: func(r healthcheck.Result) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.told[r.ID], p.when[r.ID] = r, time.Now()
		},
	})
	var targets []healthcheck.Target
	for i := range n.servers {
		targets = append(targets, healthcheck.Target{Service: "web", ID: uint16(i + 1), Name: n.name(i), VIP: vip, Address: n.address(i, false), Port: plainPort,
			Health: model.Health{Check: model.CheckHTTP, Path: "/", Interval: model.Duration(checkInterval), Timeout: model.Duration(checkInterval), Rise: 1, Fall: checkFall}})
	}
	prober.Set(targets)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		prober.Run(ctx)
		close(ended)
	}()
	n.Cleanup(func() { cancel(); <-ended })
	for i := range n.servers {
		n.await(n.name(i)+" is healthy", func() bool { return p.result(i).Healthy })
		if have := p.result(i); have.Direct != "" {
			n.Errorf("%s is checked straight: %s", n.name(i), have.Direct)
		}
	}
	return p
}

func (p *probing) result(server int) healthcheck.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told[uint16(server+1)]
}

// falls waits for a server to be unhealthy, and for the reason.
func (p *probing) falls(n *checkNet, server int, since time.Time, reason string) {
	n.Helper()
	n.await(n.name(server)+" is unhealthy", func() bool { return !p.result(server).Healthy })
	p.mu.Lock()
	defer p.mu.Unlock()
	n.Logf("%s: seen after %s", reason, p.when[uint16(server+1)].Sub(since)) // in time: TestAVerdictComesWithinFallOrRiseIntervals
	if have := p.told[uint16(server+1)].Detail; !strings.Contains(have, reason) {
		n.Errorf("%s is unhealthy because of %q, want %q", n.name(server), have, reason)
	}
	if !p.told[uint16(2-server)].Healthy {
		n.Errorf("%s is unhealthy too: %+v", n.name(1-server), p.told[uint16(2-server)])
	}
}

// Promise: A dead server gets no new connections after `fall` failed checks; its connections are lost.
// Also held by TestUnhealthyServersGetNothingNewAndKeepWhatTheyHave.
func TestADeadApplicationIsSeenInTime(t *testing.T) {
	n := newCheckNet(t)
	vip := n.servers[0].vips[0]
	n.set(vip, false, nil)
	p := n.probe(vip)
	killed := time.Now()
	n.apps[fmt.Sprint(n.name(0), vip, plainPort)].Close()
	p.falls(n, 0, killed, "connect: connection refused")
}

func TestABlockedPathIsSeenInTime(t *testing.T) {
	n := newCheckNet(t)
	vip := n.servers[0].vips[1]
	n.set(vip, true, func(target *checkroute.Target) { target.Forward = model.ForwardGUE })
	p := n.probe(vip)
	cut := time.Now()
	progtest.Check(t, n.servers[1].server.SetLink("eth0", false))
	p.falls(n, 1, cut, "timed out")
}

// The server answers at its own address all the time: only the way of traffic tells that it gets none.
//
// Promise: A server whose agent, tunnel or VIP fails is unhealthy, because checks go to the VIP through the
// tunnel.
// Also held by TestABlockedPathIsSeenInTime.
func TestAServerWithoutItsAgentIsSeen(t *testing.T) {
	n := newCheckNet(t)
	vip := n.servers[0].vips[0]
	n.set(vip, false, nil)
	p := n.probe(vip)
	stopped := time.Now()
	progtest.Check(t, n.servers[0].agent.SetOwnAddresses(nil))
	p.falls(n, 0, stopped, "timed out")
}
