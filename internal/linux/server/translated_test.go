package server_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// nft loads rules of nftables in a namespace.
func nft(t *testing.T, space *netspace.Space, rules string) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nftables:", err)
	}
	progtest.Check(t, space.Do(func() error {
		command := exec.Command("nft", "-f", "-")
		command.Stdin = strings.NewReader(rules)
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	}))
}

func (r *rig) translate(rules string) {
	r.t.Helper()
	nft(r.t, r.server, rules)
}

// listenAt serves in a namespace.
func (r *rig) listenAt(space *netspace.Space, address string) {
	r.t.Helper()
	config := net.ListenConfig{KeepAlive: -1}
	config.SetMultipathTCP(false)
	var listener net.Listener
	progtest.Check(r.t, space.Do(func() (err error) {
		listener, err = config.Listen(context.Background(), "tcp", address)
		return err
	}))
	r.t.Cleanup(func() { listener.Close() })
	r.serve(listener)
}

// prerouting is a table with one rule for what comes in.
func prerouting(family, rule string) string {
	return "table " + family + " t {\nchain c {\ntype nat hook prerouting priority dstnat\n" + rule + "\n}\n}\n"
}

// What a redirect takes to another port has a socket, but not at the service's address and port.
func TestConnectionsThatTheServerRedirectsCarryCookies(t *testing.T) {
	for name, setting := range map[string]struct {
		sysctls map[string]string
		other   bool // somebody listens at the service's port as well
	}{
		"plain":            {},
		"and a listener":   {other: true},
		"with SYN cookies": {sysctls: map[string]string{"net/ipv4/tcp_syncookies": "2"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigOptions{sysctls: setting.sysctls})
			r.translate(prerouting("inet", "tcp dport 80 redirect to :17011"))
			r.listenAt(r.server, ":17011")
			if setting.other {
				r.listen(false)
			}
			r.fleet.Keys.Cookie[2] = [16]byte{9, 9, 9}
			before, w := r.rejects(), r.watch()
			first := []net.Conn{r.dial(r.vips[0]), r.dial(r.vips[1])}
			for _, conn := range first {
				progtest.Check(t, fetch(conn, 100000))
			}
			r.fleet.Keys.Current = 2
			r.publish()
			for range 3 {
				r.browse(6, 1, 1000, 100000)
				for _, conn := range first {
					progtest.Check(t, fetch(conn, 100000))
				}
			}
			for _, conn := range first {
				conn.Close()
			}
			if r.count("ingress_restored_translated") == 0 || r.count("egress_marked_translated") == 0 {
				t.Error("no connection was translated")
			}
			r.verify(w, before)
		})
	}
}

// What is published from a container has no socket here at all.
func TestConnectionsThatTheServerTakesToAContainerCarryCookies(t *testing.T) {
	r := newRig(t, rigOptions{})
	container := progtest.NewSpace(t, "k")
	progtest.Check(t, container.Sysctl("net/ipv6/conf/default/accept_dad", "0"))
	progtest.Connect(t, r.server, "eth5", 1, container, "eth0", 2, 7, 0)
	progtest.Check(t, r.server.Sysctl("net/ipv4/ip_forward", "1"))
	progtest.Check(t, r.server.Sysctl("net/ipv6/conf/all/forwarding", "1"))
	for _, space := range []struct{ to, via string }{{"10.9.0.0/24", "10.7.0.1"}, {"fd09::/64", "fd07::1"}} {
		progtest.Check(t, container.Route(progtest.Prefixes(space.to)[0], 0, hop(space.via)))
	}
	r.translate(prerouting("ip", "ip daddr 198.51.100.10 tcp dport 80 dnat to 10.7.0.2:8080") +
		prerouting("ip6", "ip6 daddr 2001:db8:51::10 tcp dport 80 dnat to [fd07::2]:8080"))
	r.listenAt(container, ":8080")
	r.listen(false) // as a container engine's proxy does
	before, w := r.rejects(), r.watch()
	conn := r.dial(r.vips[0])
	defer conn.Close()
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		progtest.Check(t, fetch(conn, 100000))
		r.browse(6, 1, 1000, 100000)
	}
	if r.count("ingress_restored_translated") == 0 || r.count("egress_marked_translated") == 0 {
		t.Error("no connection was translated")
	}
	r.awaitEchoes([2]uint64{0, 1}) // those that have ended are in no way alive
	r.verify(w, before)
}

func hop(gateway string) netspace.NextHop {
	return netspace.NextHop{Gateway: netip.MustParseAddr(gateway), Interface: "eth0"}
}

// To another address of the host, the port stays.
func TestConnectionsThatTheServerTakesToAnotherAddressCarryCookies(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.translate(prerouting("ip", "ip daddr 198.51.100.10 tcp dport 80 dnat to 10.9.0.2:80") +
		prerouting("ip6", "ip6 daddr 2001:db8:51::10 tcp dport 80 dnat to [fd09::2]:80"))
	r.listenAt(r.server, "10.9.0.2:80")
	r.listenAt(r.server, "[fd09::2]:80")
	before, w := r.rejects(), r.watch()
	r.browse(6, 1, 1000, 100000)
	if r.count("ingress_restored_translated") == 0 || r.count("egress_marked_translated") == 0 {
		t.Error("no connection was translated")
	}
	r.verify(w, before)
}

// serveToo adds services at another port.
func (r *rig) serveToo(port uint16) {
	r.t.Helper()
	for _, service := range r.fleet.Services {
		service.Name += "-other"
		service.Ports = []uint16{port}
		service.Servers = slices.Clone(service.Servers)
		r.fleet.Services = append(r.fleet.Services, service)
	}
	r.publish()
}

// dialDirectly makes a connection of another port, which marks its listener.
func (r *rig) dialDirectly(port uint16) (direct net.Conn) {
	r.t.Helper()
	progtest.Check(r.t, r.client.Do(func() (err error) {
		direct, err = net.Dial("tcp", netip.AddrPortFrom(r.vips[0], port).String())
		return err
	}))
	progtest.Check(r.t, fetch(direct, 1000))
	return direct
}

// The listener of a port that is served too gives its storage to the children of a redirect, whose state is the flow's.
func TestConnectionsThatARedirectTakesToAServedPortHaveOneState(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.serveToo(17011)
	r.translate(prerouting("inet", "tcp dport 80 redirect to :17011"))
	r.listenAt(r.server, ":17011")
	direct := r.dialDirectly(17011)
	defer direct.Close() // silent until then
	marked := r.count("egress_marked")
	conn := r.dial(r.vips[0])
	defer conn.Close()
	for range 3 {
		progtest.Check(t, fetch(conn, 100000))
	}
	if r.count("egress_marked") != marked || r.count("egress_marked_translated") == 0 || r.count("ingress_restored_translated") == 0 {
		t.Errorf("%d packets of a redirected connection were marked by its socket, %d by its flow", r.count("egress_marked")-marked, r.count("egress_marked_translated"))
	}
}
