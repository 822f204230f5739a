package checkroute_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/checkroute"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// A sending has packets sent by a load balancer's program.
type sending struct {
	lb      *lb.LB
	mu      sync.Mutex
	sent    int
	refuses error // what Try says
	tries   atomic.Int32
}

func (s *sending) Send(p checkroute.Packet) error {
	s.mu.Lock()
	s.sent++
	s.mu.Unlock()
	return s.lb.SendCheck(p.Service, p.Server, p.Direct, p.IP)
}

func (s *sending) Try() error {
	s.tries.Add(1)
	if s.refuses != nil {
		return s.refuses
	}
	return s.lb.TrySendCheck()
}

func (s *sending) ByXDP(uint32) bool { return true }

// count is how many packets were sent since the last call.
func (s *sending) count() (sent int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent, s.sent = s.sent, 0
	return sent
}

// sendingForwards are those of services of the load balancer of a sending; direct checks of any use their rows.
var sendingForwards = []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE}

// routerAddress is behind a veth whose peer has no program.
var routerAddress = netip.MustParseAddr("10.7.0.2")

func sendingName(forward model.Forward, ipv6 bool) string {
	return fmt.Sprintf("%s, server IPv6 %v", forward, ipv6)
}

// sends makes the net's checks begin with packets of a load balancer's program, until the test ends. numbers are its services' by sendingName.
func (n *checkNet) sends(refuses error) (s *sending, numbers map[string]uint32) {
	n.Helper()
	limits := plan.Limits{Services: 8, Servers: 32, ServerIDs: 1 << 16, Slots: 1 << 16, Rounds: 1 << 10}
	path, err := lb.Open(progtest.Pins(n.T), limits)
	progtest.Check(n, err)
	want := &plan.Want{Keys: n.servers[0].fleet.Keys, Paths: map[netip.Addr]plan.Path{}}
	for i, forward := range sendingForwards {
		for j, ipv6 := range []bool{false, true} {
			service := model.NewService()
			service.Name, service.VIP, service.Ports, service.Forward = sendingName(forward, ipv6), netip.MustParseAddr("192.0.2.1"), []uint16{uint16(2*i + j + 1)}, forward
			for server := range n.servers {
				address := n.address(server, ipv6)
				want.Paths[address] = n.path(address)
				service.Servers = append(service.Servers, model.Server{Name: n.name(server), ID: uint16(server + 1), Address: address, Weight: 1})
			}
			service.ApplyDefaults()
			want.Services = append(want.Services, plan.Service{Service: service})
		}
	}
	lost := model.NewService()
	lost.Name, lost.VIP, lost.Ports, lost.Forward = "router", netip.MustParseAddr("192.0.2.1"), []uint16{100}, model.ForwardL2
	want.Paths[routerAddress] = n.path(routerAddress)
	lost.Servers = []model.Server{{Name: "router", ID: 1, Address: routerAddress, Weight: 1}}
	lost.ApplyDefaults()
	want.Services = append(want.Services, plan.Service{Service: lost})
	tables := plan.NewTables(limits)
	changes, err := tables.Update(want)
	progtest.Check(n, err)
	progtest.Check(n, path.Apply(changes))
	numbers = map[string]uint32{}
	for name, place := range tables.Places() {
		numbers[name] = place.Number
	}
	s = &sending{lb: path, refuses: refuses}
	progtest.Check(n, n.lb.Do(func() error { return n.checks.Close() }))
	n.pins = progtest.Pins(n.T)
	var checks *checkroute.Checks
	progtest.Check(n, n.lb.Do(func() (err error) { checks, err = checkroute.Open(n.pins, s); return err }))
	n.checks = checks
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- n.lb.Do(func() error { return checks.Run(ctx) }) }()
	n.Cleanup(func() {
		cancel()
		progtest.Check(n, errors.Join(<-ended, n.lb.Do(checks.Close), path.Close()))
	})
	return s, numbers
}

// connect makes a connection to a server of set, with a hello by UDP, and returns why it went straight there.
func (n *checkNet) connect(server int, port uint16, hello []byte) (straight string, err error) {
	ctx, cancel := context.WithTimeout(n.Context(), progtest.Deadline)
	defer cancel()
	conn, remarks, err := n.dial(ctx, n.key(server), port, hello)
	if err != nil || conn == nil {
		return remarks.Direct, err
	}
	defer conn.Close()
	if hello != nil {
		if err := conn.SetDeadline(time.Now().Add(progtest.Deadline)); err != nil {
			return remarks.Direct, err
		}
		if _, err := conn.Read(make([]byte, 100)); err != nil {
			return remarks.Direct, err
		}
	}
	return remarks.Direct, nil
}

func TestTheLoadBalancersProgramSendsTheFirstPacketOfAChecksConnection(t *testing.T) {
	progtest.BothWays(t, programSendsFirstPackets)
}

func programSendsFirstPackets(t *testing.T) {
	n := newCheckNet(t)
	s, numbers := n.sends(nil)
	for _, vip := range n.servers[0].vips {
		for i, r := range n.servers {
			n.echo(n.name(i), r.server, vip)
		}
	}
	for _, ipv6 := range []bool{false, true} {
		for i, r := range n.servers {
			n.listen(r, netip.AddrPortFrom(n.address(i, ipv6), plainPort))
		}
		for _, vip := range n.servers[0].vips {
			for _, forward := range sendingForwards {
				n.set(vip, ipv6, func(target *checkroute.Target) {
					target.Forward, target.Number, target.ID = forward, numbers[sendingName(forward, ipv6)], n.idOf(target.Server)
				})
				n.await("packets to be sent by XDP", func() bool { // once Run runs
					_, err := n.connect(0, plainPort, nil)
					return s.count() > 0 && err == nil
				})
				for i := range n.servers {
					for _, hello := range [][]byte{nil, make([]byte, 1200)} {
						straight, err := n.connect(i, plainPort, hello)
						if sent := s.count(); err != nil || straight != "" || sent == 0 {
							t.Errorf("%s to %s, server IPv6 %v, hello of %d bytes: straight %q, %d packets by XDP: %v", forward, vip, ipv6, len(hello), straight, sent, err)
						}
					}
				}
			}
			n.set(vip, ipv6, func(target *checkroute.Target) {
				target.Forward, target.Number, target.ID = model.ForwardNAT, numbers[sendingName(model.ForwardL2, ipv6)], n.idOf(target.Server)
			})
			for i := range n.servers {
				straight, err := n.connect(i, plainPort, nil)
				if sent := s.count(); err != nil || !strings.Contains(straight, "nat") || sent == 0 {
					t.Errorf("to the address of %s, IPv6 %v: straight %q, %d packets by XDP: %v", n.name(i), ipv6, straight, sent, err)
				}
			}
		}
	}
}

// idOf is the id of the server with an address.
func (n *checkNet) idOf(address netip.Addr) uint16 {
	for i := range n.servers {
		if address == n.address(i, address.Is6()) {
			return uint16(i + 1)
		}
	}
	n.Fatalf("%s is no server's", address)
	return 0
}

// listen accepts connections to an address of a server.
func (n *checkNet) listen(r *backend, at netip.AddrPort) {
	n.Helper()
	var listener net.Listener
	progtest.Check(n, r.server.Do(func() (err error) { listener, err = net.Listen("tcp", at.String()); return err }))
	n.Cleanup(func() { listener.Close() })
}

// Veth drops what is redirected to it while its peer has no program. What the kernel sends arrives.
func TestACheckFailsWhoseFirstPacketADriverDrops(t *testing.T) {
	n := newCheckNet(t)
	s, numbers := n.sends(nil)
	vip := n.servers[0].vips[0]
	change := func(target *checkroute.Target) {
		target.Forward, target.Number, target.ID = model.ForwardL2, numbers[sendingName(model.ForwardL2, false)], n.idOf(target.Server)
		if target.ID == 2 {
			target.Number, target.ID, target.Server, target.Path = numbers["router"], 1, routerAddress, n.path(routerAddress)
		}
	}
	n.set(vip, false, change)
	n.await("packets to be sent by XDP", func() bool {
		_, err := n.connect(0, plainPort, nil)
		return s.count() > 0 && err == nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	conn, remarks, err := n.dial(ctx, n.key(1), plainPort, nil)
	if conn != nil || err == nil || remarks.SentBy == 0 {
		t.Errorf("the check succeeds: %+v, %v", remarks, err)
	}
	n.sends(errors.New("refused"))
	n.set(vip, false, change)
	if straight, err := n.connect(1, plainPort, nil); err != nil || straight != "" {
		t.Errorf("what the kernel sends does not arrive: straight %q, %v", straight, err)
	}
}

// Where the kernel refuses such runs, and until Run runs, it sends all packets itself.
//
// Promise: Where the kernel refuses live-frames runs, checks go by its network stack, and status shows a problem.
func TestTheKernelSendsWhatTheProgramCannot(t *testing.T) {
	n := newCheckNet(t)
	refused := errors.New("refused")
	s, _ := n.sends(refused)
	vip := n.servers[0].vips[0]
	n.set(vip, false, func(target *checkroute.Target) { target.Forward = model.ForwardL2 })
	for range 3 {
		if straight, err := n.connect(0, plainPort, nil); err != nil || straight != "" {
			t.Errorf("straight %q: %v", straight, err)
		}
	}
	if sent := s.count(); sent != 0 || !errors.Is(n.checks.Refused(), refused) {
		t.Errorf("%d packets were given to the program; refused: %v", sent, n.checks.Refused())
	}
	s.refuses = nil
	n.set(vip, false, func(target *checkroute.Target) { target.Forward = model.ForwardL2 })
	if err := n.checks.Refused(); err != nil || s.tries.Load() != 2 {
		t.Errorf("tried %d times: %v", s.tries.Load(), err)
	}
}
