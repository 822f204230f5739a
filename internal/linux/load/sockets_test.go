package load

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const (
	vip4, other4 = "198.51.100.10", "198.51.100.11"
	vip6, other6 = "2001:db8:51::10", "2001:db8:51::11"
	deadline     = 30 * time.Second
)

var spaces atomic.Int32

// newSpace has the VIPs on its loopback; clients connect from the same namespace.
func newSpace(t testing.TB) *netspace.Space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	name := fmt.Sprintf("ballast-load-%d-%d", os.Getpid(), spaces.Add(1))
	space, err := netspace.Create(name)
	check(t, err)
	t.Cleanup(func() {
		space.Close()
		check(t, netspace.Remove(name))
	})
	for _, address := range []string{vip4, other4, vip6, other6} {
		a := netip.MustParseAddr(address)
		check(t, space.AddAddress("lo", netip.PrefixFrom(a, a.BitLen())))
	}
	for _, address := range []string{vip6, other6} {
		awaitLocal(t, space, net.ParseIP(address))
	}
	return space
}

// awaitLocal waits until an IPv6 address takes packets, which is a moment after it has been added.
func awaitLocal(t testing.TB, space *netspace.Space, address net.IP) {
	t.Helper()
	await.True(t, address.String()+" takes packets", func() (local bool) {
		check(t, space.Do(func() error {
			routes, err := netlink.RouteGet(address)
			local = err == nil && routes[0].Type == unix.RTN_LOCAL
			return nil
		}))
		return local
	})
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// inSpace opens the list of sockets of the namespace.
func inSpace(t testing.TB, space *netspace.Space) *sockets {
	t.Helper()
	var s *sockets
	check(t, space.Do(func() (err error) {
		s, err = openSockets()
		return err
	}))
	t.Cleanup(s.close)
	return s
}

// listen makes a listening socket with a backlog that nobody accepts from but accept.
func listen(t testing.TB, space *netspace.Space, address string, backlog int) (fd int) {
	t.Helper()
	check(t, space.Do(func() (err error) {
		at := netip.MustParseAddrPort(address)
		family, bound := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(at.Port()), Addr: [4]byte(append(at.Addr().AsSlice(), 0, 0, 0, 0))})
		if at.Addr().Is6() {
			family, bound = unix.AF_INET6, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
		}
		if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.Bind(fd, bound), unix.Listen(fd, backlog))
	}))
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func accept(t testing.TB, listener, n int) (accepted []int) {
	t.Helper()
	for range n {
		fd, _, err := unix.Accept(listener)
		check(t, err)
		accepted = append(accepted, fd)
		t.Cleanup(func() { unix.Close(fd) })
	}
	return accepted
}

func dial(t testing.TB, space *netspace.Space, address string, n int) (connections []net.Conn) {
	t.Helper()
	for range n {
		check(t, space.Do(func() error {
			var dialer net.Dialer
			dialer.SetMultipathTCP(false)
			dialer.Timeout = deadline
			c, err := dialer.Dial("tcp", address)
			if err == nil {
				connections = append(connections, c)
				t.Cleanup(func() { c.Close() })
			}
			return err
		}))
	}
	return connections
}

func service(name, vip string, ports ...uint16) Service {
	return Service{Name: name, VIP: netip.MustParseAddr(vip), Ports: ports}
}

// awaitCounts counts until it is what is wanted: the last segments of a handshake may be under way.
func awaitCounts(t *testing.T, s *sockets, services []Service, want ...count) {
	t.Helper()
	target := newTargets(services)
	have := make([]count, len(services))
	await.Nil(t, "the counts are right", func() error {
		check(t, s.count(target, have))
		if !slices.Equal(have, want) {
			return fmt.Errorf("have %v, want %v", have, want)
		}
		return nil
	})
}

func TestConnectionsOfAServiceAreCounted(t *testing.T) {
	space := newSpace(t)
	s := inSpace(t, space)
	services := []Service{service("four", vip4, 80, 81), service("six", vip6, 80), service("other", other4, 80)}
	awaitCounts(t, s, services, count{}, count{}, count{})
	wild4, wild6 := listen(t, space, "0.0.0.0:80", 64), listen(t, space, "[::1]:9", 64)
	both := listen(t, space, "[::]:81", 64) // takes IPv4, too
	six := listen(t, space, "["+vip6+"]:80", 64)
	_ = wild6
	dial(t, space, vip4+":80", 5)
	accept(t, wild4, 5)
	awaitCounts(t, s, services, count{accepted: 5}, count{}, count{})
	dial(t, space, vip4+":81", 2)
	awaitCounts(t, s, services, count{accepted: 5, waiting: 2}, count{}, count{})
	accept(t, both, 1)
	awaitCounts(t, s, services, count{accepted: 6, waiting: 1}, count{}, count{})
	dial(t, space, "["+vip6+"]:80", 3)
	accept(t, six, 3)
	awaitCounts(t, s, services, count{accepted: 6, waiting: 1}, count{accepted: 3}, count{})
	dial(t, space, other4+":80", 4) // the same listening socket, another service
	awaitCounts(t, s, services, count{accepted: 6, waiting: 1}, count{accepted: 3}, count{waiting: 4})
	dial(t, space, other4+":81", 1) // no service at all
	dial(t, space, "["+vip6+"]:81", 1)
	awaitCounts(t, s, services, count{accepted: 6, waiting: 1}, count{accepted: 3}, count{waiting: 4})
}

func TestAFullAcceptQueueIsCountedAsTheKernelDoes(t *testing.T) {
	space := newSpace(t)
	s := inSpace(t, space)
	listener := listen(t, space, "0.0.0.0:80", 6)
	dial(t, space, vip4+":80", 7) // the kernel lets one more in than the backlog says
	awaitCounts(t, s, []Service{service("web", vip4, 80)}, count{waiting: 7})
	var queue uint32
	check(t, space.Do(func() error {
		list, err := netlink.SocketDiagTCP(unix.AF_INET)
		for _, socket := range list {
			if socket.State == stateListen && socket.ID.SourcePort == 80 {
				queue += socket.RQueue
			}
		}
		return err
	}))
	if queue != 7 {
		t.Errorf("the queue is %d long", queue)
	}
	accept(t, listener, 7)
	awaitCounts(t, s, []Service{service("web", vip4, 80)}, count{accepted: 7})
}

func TestClosedConnectionsCountUntilTheClientHasEverything(t *testing.T) {
	space := newSpace(t)
	s := inSpace(t, space)
	web := []Service{service("web", vip4, 80)}
	listener := listen(t, space, vip4+":80", 16)
	clients := dial(t, space, vip4+":80", 2)
	servers := accept(t, listener, 2)
	check(t, clients[0].Close()) // the server has not noticed: CLOSE_WAIT
	awaitCounts(t, s, web, count{accepted: 2})
	check(t, unix.Close(servers[0]))
	awaitCounts(t, s, web, count{accepted: 1})

	check(t, unix.SetNonblock(servers[1], true))
	var err error
	for block := make([]byte, 1<<16); err == nil; {
		_, err = unix.Write(servers[1], block)
	}
	check(t, unix.Close(servers[1]))
	awaitCounts(t, s, web, count{accepted: 1}) // what was written is on its way: FIN_WAIT1
	go io.Copy(io.Discard, clients[1])
	awaitCounts(t, s, web, count{})
}

// Beyond mostConditions the kernel lists everything and this package looks it up.
func TestConnectionsOfManyServicesAreCounted(t *testing.T) {
	for _, n := range []int{3, mostConditions, mostConditions + 1, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			space := newSpace(t)
			s := inSpace(t, space)
			var services []Service
			for port := range n {
				services = append(services, service(fmt.Sprint("s", port), []string{vip4, vip6}[port%2], uint16(1000+port)))
			}
			if filtered := newTargets(services).bytecode != nil; filtered != (n <= mostConditions) {
				t.Fatalf("there is a filter: %v", filtered)
			}
			want := make([]count, n)
			for _, i := range []int{0, n / 2, n - 1} {
				address := netip.AddrPortFrom(services[i].VIP, services[i].Ports[0]).String()
				listen(t, space, address, 4)
				want[i].waiting = uint32(len(dial(t, space, address, 3)))
			}
			awaitCounts(t, s, services, want...)
		})
	}
}

func TestServicesThatNobodyListensForAreNamed(t *testing.T) {
	space := newSpace(t)
	s := inSpace(t, space)
	services := newTargets([]Service{service("four", vip4, 80), service("six", vip6, 80), service("own", other4, 81)})
	expect := func(want ...string) {
		t.Helper()
		have, err := s.unheard(services)
		check(t, err)
		if !slices.Equal(have, want) {
			t.Errorf("have %q, want %q", have, want)
		}
	}
	four, six, own := "connections of four: nothing listens on "+vip4+":80", "connections of six: nothing listens on ["+vip6+"]:80",
		"connections of own: nothing listens on "+other4+":81"
	expect(four, six, own)
	listen(t, space, vip4+":81", 1) // another's address
	expect(four, six, own)
	listen(t, space, other4+":81", 1)
	expect(four, six)
	listener := listen(t, space, "[::]:80", 1)
	expect()
	check(t, unix.Close(listener))
	listen(t, space, "0.0.0.0:80", 1)
	expect(six)
	services = newTargets([]Service{service("many", vip4, 80, 90, 91)})
	expect("connections of many: nothing listens on " + vip4 + ":90, " + vip4 + ":91")
}

func TestProtocolsWithoutConnectionsAreNotLookedFor(t *testing.T) {
	s := newTargets([]Service{{Name: "dns", Protocol: model.ProtocolUDP, VIP: netip.MustParseAddr(vip4), Ports: []uint16{53}}})
	if s.any() {
		t.Error("it is")
	}
}

func TestBrokenListsOfSocketsAreRefused(t *testing.T) {
	s := sockets{sequence: 7}
	for _, message := range [][]byte{
		{255, 0, 0, 0, 18, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0},
		{3, 0, 0, 0, 18, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0},
		{20, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, // NLMSG_ERROR
	} {
		if done, err := s.parse(message, func(socket) { t.Error("a socket") }); !done || err == nil {
			t.Errorf("%v: %v, %v", message, done, err)
		}
	}
	short := []byte{24, 0, 0, 0, 18, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0}
	if done, err := s.parse(short, func(socket) { t.Error("a socket") }); done || err != nil {
		t.Errorf("%v, %v", done, err)
	}
}

func BenchmarkCount(b *testing.B) {
	for _, connections := range []int{0, 100, 1000} {
		b.Run(fmt.Sprint(connections), func(b *testing.B) {
			space := newSpace(b)
			s := inSpace(b, space)
			listen(b, space, vip4+":80", 2000)
			dial(b, space, vip4+":80", connections)
			target, counts := newTargets([]Service{service("web", vip4, 80)}), make([]count, 1)
			for b.Loop() {
				check(b, s.count(target, counts))
			}
			if int(counts[0].waiting) != connections {
				b.Fatal(counts)
			}
		})
	}
}
