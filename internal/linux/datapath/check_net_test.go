package datapath_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/lab/netspace"
	healthcheck "github.com/ballast-lb/ballast/internal/linux/check"
	"github.com/ballast-lb/ballast/internal/linux/datapath"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// A checkNet is a load balancer with two servers, each on a wire of its own, that have the same VIPs, and a router that the load
// balancer's routes to the VIPs lead to. The router has the VIPs too: a check that took the ordinary route would succeed there.
type checkNet struct {
	*testing.T
	lb, router *netspace.Space
	servers    []*rig
	apps       map[string]*httptest.Server // by who answers, VIP and scheme
	checks     *datapath.Checks
}

const (
	plainPort  = 80
	securePort = 443
)

func newCheckNet(t *testing.T) *checkNet {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	n := &checkNet{T: t, lb: newSpace(t, "l"), router: newSpace(t, "r"), apps: map[string]*httptest.Server{}}
	spaces := []*netspace.Space{newSpace(t, "s"), newSpace(t, "s")}
	for _, space := range append(spaces, n.lb, n.router) {
		check(t, space.Sysctl("net/ipv6/conf/default/accept_dad", "0"))
	}
	vips := []netip.Addr{netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("2001:db8:51::10")}
	connect(t, n.lb, "eth2", 1, n.router, "eth0", 2, 7, 1500)
	for i, gateway := range []string{"10.7.0.2", "fd07::2"} {
		check(t, n.lb.Route(netip.PrefixFrom(vips[i], vips[i].BitLen()), 0, netspace.NextHop{Gateway: netip.MustParseAddr(gateway), Interface: "eth2"}))
		n.serve("router", n.router, vips[i])
	}
	for i, space := range spaces {
		connect(t, n.lb, fmt.Sprintf("eth%d", i), 1, space, "eth0", 2, 9-i, 1500)
		for _, way := range [][2]string{{"10.0.0.0/8", "10.%d.0.1"}, {"fd00::/8", "fd%02d::1"}} { // as servers reach clients anywhere
			check(t, space.Route(netip.MustParsePrefix(way[0]), 0, netspace.NextHop{Gateway: netip.MustParseAddr(fmt.Sprintf(way[1], 9-i)), Interface: "eth0"}))
		}
		r := &rig{t: t, client: n.lb, server: space, vips: vips}
		r.fleet = &model.Fleet{Keys: model.Keys{Current: 1, Cookie: map[uint32][16]byte{1: {1, 2, 3}}}}
		for _, vip := range vips {
			r.fleet.Services = append(r.fleet.Services, model.Service{Name: vip.String(), VIP: vip, Protocol: model.ProtocolTCP,
				Ports: []uint16{plainPort, securePort}, CookieBits: 14, Affinity: model.AffinityCookie,
				Servers: []model.Server{{Name: n.name(i), ID: uint16(i + 1), Address: n.address(i, false)}}})
			n.serve(n.name(i), space, vip)
		}
		r.attach("")
		check(t, r.agent.SetOwnAddresses([]netip.Addr{n.address(i, false), n.address(i, true)}))
		n.servers = append(n.servers, r)
	}
	var err error
	n.checks, err = datapath.OpenChecks()
	check(t, err)
	t.Cleanup(func() { n.checks.Close() })
	return n
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
	check(n, space.AddAddress("lo", netip.PrefixFrom(vip, vip.BitLen())))
	for _, port := range []uint16{plainPort, securePort} {
		app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			io.WriteString(w, name+strings.Repeat(".", 10000)) // several segments
		}))
		app.Listener.Close()
		check(n, space.Do(func() (err error) {
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
	for end := time.Now().Add(deadline); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			n.Fatalf("%s: not within %s", what, deadline)
		}
	}
}

// set makes targets of both servers under the key "web" and waits for the way to the VIPs.
func (n *checkNet) set(vip netip.Addr, ipv6 bool, change func(*datapath.CheckTarget)) {
	n.Helper()
	n.path(netip.MustParseAddr("10.7.0.2"))
	n.path(netip.MustParseAddr("fd07::2"))
	targets := map[datapath.CheckKey]datapath.CheckTarget{}
	for i := range n.servers {
		address := n.address(i, ipv6)
		target := datapath.CheckTarget{VIP: vip, Server: address, Forward: model.ForwardIPIP, Path: n.path(address)}
		if change != nil {
			change(&target)
		}
		targets[n.key(i)] = target
	}
	check(n, n.lb.Do(func() error { return n.checks.Set(targets) }))
}

func (n *checkNet) key(server int) datapath.CheckKey {
	return datapath.CheckKey{Service: "web", ID: uint16(server + 1)}
}

func (n *checkNet) dial(ctx context.Context, key datapath.CheckKey, port uint16) (conn net.Conn, straight string, err error) {
	failed := n.lb.Do(func() error {
		conn, straight, err = n.checks.Dial(ctx, key, port)
		return nil
	})
	if err == nil {
		err = failed
	}
	return conn, straight, err
}

// fetch asks who answers a check.
func (n *checkNet) fetch(server int, port uint16) (who string, err error) {
	ctx, cancel := context.WithTimeout(n.Context(), deadline)
	defer cancel()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, straight, err := n.dial(ctx, n.key(server), port)
		if err == nil && straight != "" {
			err = fmt.Errorf("straight: %s", straight)
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
	n := newCheckNet(t)
	n.balance()
	for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE} {
		for _, vip := range n.servers[0].vips {
			for _, ipv6 := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s to %s, server IPv6 %v", forward, vip, ipv6), func(t *testing.T) {
					before := n.servers[0].rejects()
					n.set(vip, ipv6, func(target *datapath.CheckTarget) { target.Forward = forward })
					for i, r := range n.servers {
						marked, taken := r.count("egress_marked_syn_ack"), r.count("decapsulated")
						for _, port := range []uint16{plainPort, securePort} {
							if who, err := n.fetch(i, port); who != n.name(i) {
								t.Errorf("a check of %s on port %d is answered by %q: %v", n.name(i), port, who, err)
							}
						}
						if r.count("egress_marked_syn_ack") == marked {
							t.Errorf("%s marked none of the checks' connections", n.name(i))
						}
						if tunnelled := r.count("decapsulated") > taken; tunnelled != (forward != model.ForwardL2) {
							t.Errorf("%s was reached through a tunnel: %v", n.name(i), tunnelled)
						}
					}
					if after := n.servers[0].rejects(); !equal(after, before) {
						t.Errorf("rejected timestamps: %v before, %v after", before, after)
					}
				})
			}
		}
	}
}

// balance runs the load balancer on all devices, with the servers and VIPs as its own.
func (n *checkNet) balance() {
	n.Helper()
	dir := n.servers[0].pins()
	limits := plan.Limits{Services: 4, Servers: 16, ServerIDs: 1 << 16, Slots: 1 << 16, Rounds: 1 << 10}
	lb, err := datapath.OpenLB(dir, limits)
	check(n, err)
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
	check(n, err)
	check(n, lb.Apply(changes))
	for _, name := range []string{"eth0", "eth1", "eth2"} {
		check(n, n.lb.Do(func() error {
			device, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			_, err = lb.Attach(device, datapath.XDPAuto)
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
	// checkSlack is for a busy machine.
	checkSlack = time.Second
)

func (n *checkNet) probe(vip netip.Addr) *probing {
	p := &probing{told: map[uint16]healthcheck.Result{}, when: map[uint16]time.Time{}}
	prober := healthcheck.New(healthcheck.Options{
		NewVerdict: func() healthcheck.Verdict { return &health.Server{} },
		Timing:     healthcheck.Timing{First: health.First, Next: health.Next},
		Dial: func(ctx context.Context, t healthcheck.Target, port uint16) (net.Conn, string, error) {
			return n.dial(ctx, datapath.CheckKey{Service: t.Service, ID: t.ID}, port)
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
		if have := p.result(i); have.Straight != "" {
			n.Errorf("%s is checked straight: %s", n.name(i), have.Straight)
		}
	}
	return p
}

func (p *probing) result(server int) healthcheck.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told[uint16(server+1)]
}

// falls waits for a server to be unhealthy in time, and for the reason.
func (p *probing) falls(n *checkNet, server int, since time.Time, reason string) {
	n.Helper()
	n.await(n.name(server)+" is unhealthy", func() bool { return !p.result(server).Healthy })
	p.mu.Lock()
	defer p.mu.Unlock()
	took, bound := p.when[uint16(server+1)].Sub(since), checkFall*checkInterval*11/10
	n.Logf("%s: seen after %s", reason, took)
	if took > bound+checkSlack {
		n.Errorf("%s was seen to be unhealthy after %s, want %s at most", n.name(server), took, bound)
	}
	if have := p.told[uint16(server+1)].Detail; !strings.Contains(have, reason) {
		n.Errorf("%s is unhealthy because of %q, want %q", n.name(server), have, reason)
	}
	if !p.told[uint16(2-server)].Healthy {
		n.Errorf("%s is unhealthy too: %+v", n.name(1-server), p.told[uint16(2-server)])
	}
}

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
	n.set(vip, true, func(target *datapath.CheckTarget) { target.Forward = model.ForwardGUE })
	p := n.probe(vip)
	cut := time.Now()
	check(t, n.servers[1].server.SetLink("eth0", false))
	p.falls(n, 1, cut, "timed out")
}

// The server answers at its own address all the time: only the way of traffic tells that it gets none.
func TestAServerWithoutItsAgentIsSeen(t *testing.T) {
	n := newCheckNet(t)
	vip := n.servers[0].vips[0]
	n.set(vip, false, nil)
	p := n.probe(vip)
	stopped := time.Now()
	check(t, n.servers[0].agent.SetOwnAddresses(nil))
	p.falls(n, 0, stopped, "timed out")
}

// shape is what a check could leave behind on the load balancer's host.
func (n *checkNet) shape() string {
	n.Helper()
	var out []string
	check(n, n.lb.Do(func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: 0}, netlink.RT_FILTER_TABLE)
			check(n, err)
			rules, err := netlink.RuleList(family)
			check(n, err)
			for _, route := range routes {
				out = append(out, route.String())
			}
			for _, rule := range rules {
				out = append(out, rule.String())
			}
		}
		links, err := netlink.LinkList()
		check(n, err)
		for _, l := range links {
			result, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXEgress})
			check(n, err)
			out = append(out, fmt.Sprintf("%s: %d programs", l.Attrs().Name, len(result.Programs)))
		}
		return nil
	}))
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func TestChecksAttachOnlyWhereTheyMustAndLeaveNothingBehind(t *testing.T) {
	n := newCheckNet(t)
	vip := n.servers[0].vips[0]
	before := n.shape()
	n.set(vip, false, nil)
	attached := strings.Replace(before, "eth2: 0 programs", "eth2: 1 programs", 1)
	if have := n.shape(); have != attached {
		t.Errorf("with targets:\n%s\nwant:\n%s", have, attached)
	}
	n.set(vip, false, nil)
	if have := n.shape(); have != attached {
		t.Errorf("with the same targets again:\n%s", have)
	}
	if _, err := n.fetch(0, plainPort); err != nil {
		t.Error(err)
	}
	check(t, n.lb.Do(func() error { return n.checks.Set(nil) }))
	if have := n.shape(); have != before {
		t.Errorf("without targets:\n%s\nbefore:\n%s", have, before)
	}
	n.set(vip, false, nil)
	check(t, n.checks.Close())
	if have := n.shape(); have != before {
		t.Errorf("after the end:\n%s\nbefore:\n%s", have, before)
	}
}

// holder makes the test program, started with the name of a VIP in this variable, attach and wait to be killed.
const holder = "BALLAST_TEST_HOLD_CHECKS"

func TestHoldChecksUntilKilled(t *testing.T) {
	vip, err := netip.ParseAddr(os.Getenv(holder))
	if err != nil {
		t.Skip("a part of TestAKilledProcessLeavesNothingBehind")
	}
	checks, err := datapath.OpenChecks()
	check(t, err)
	check(t, checks.Set(map[datapath.CheckKey]datapath.CheckTarget{
		{Service: "web", ID: 1}: {VIP: vip, Server: netip.MustParseAddr("10.9.0.2"), Forward: model.ForwardIPIP, Path: plan.Path{Ifindex: 2, Source: netip.MustParseAddr("10.9.0.1"), MTU: 1500}},
	}))
	fmt.Println("attached")
	io.Copy(io.Discard, os.Stdin)
}

func TestAKilledProcessLeavesNothingBehind(t *testing.T) {
	n := newCheckNet(t)
	n.path(netip.MustParseAddr("10.7.0.2"))
	before := n.shape()
	process := exec.Command(os.Args[0], "-test.run=^TestHoldChecksUntilKilled$")
	process.Env = append(os.Environ(), holder+"="+n.servers[0].vips[0].String())
	stdin, err := process.StdinPipe()
	check(t, err)
	defer stdin.Close()
	stdout, err := process.StdoutPipe()
	check(t, err)
	check(t, n.lb.Start(process))
	said, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || said != "attached\n" {
		t.Fatalf("the process says %q: %v", said, err)
	}
	if have := n.shape(); !strings.Contains(have, "eth2: 1 programs") {
		t.Errorf("while it runs:\n%s", have)
	}
	check(t, process.Process.Kill())
	process.Wait()
	n.await("the host is as it was", func() bool { return n.shape() == before })
}
