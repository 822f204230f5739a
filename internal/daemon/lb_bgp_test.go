package daemon_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
)

// Types of messages of BGP (RFC 4271 4.1).
const (
	bgpOpen, bgpUpdate, bgpNotification, bgpKeepalive = 1, 2, 3, 4
	bgpSecret                                         = "not for logs"
)

func bgpMessage(kind byte, body ...byte) []byte {
	message := append(bytes.Repeat([]byte{0xff}, 16), 0, 0, kind)
	message = append(message, body...)
	binary.BigEndian.PutUint16(message[16:], uint16(len(message)))
	return message
}

// bgpOpenOf is without capabilities.
func bgpOpenOf(as uint16, id byte) []byte {
	return bgpMessage(bgpOpen, 4, byte(as>>8), byte(as), 0, 90, 10, 9, 0, id, 0)
}

func readBGP(c net.Conn) (kind byte, body []byte, err error) {
	header := make([]byte, 19)
	c.SetReadDeadline(time.Now().Add(hostDeadline))
	if _, err = io.ReadFull(c, header); err != nil {
		return 0, nil, err
	}
	body = make([]byte, binary.BigEndian.Uint16(header[16:])-19)
	_, err = io.ReadFull(c, body)
	return header[18], body, err
}

// bgpRouter is a neighbour that a test plays.
type bgpRouter struct {
	*testing.T
	listener net.Listener
	sessions chan net.Conn
}

// bgpRouter listens at an address of the peer; password empty: without.
func (h *lbHost) bgpRouter(address, password string) *bgpRouter {
	r := &bgpRouter{T: h.t, sessions: make(chan net.Conn, 100)}
	require(h.t, h.peer.Do(func() (err error) {
		var plain net.ListenConfig
		plain.SetMultipathTCP(false) // which has no passwords
		r.listener, err = plain.Listen(h.t.Context(), "tcp", net.JoinHostPort(address, "179"))
		return err
	}))
	if password != "" {
		raw, err := r.listener.(*net.TCPListener).SyscallConn()
		require(h.t, err)
		key := unix.TCPMD5Sig{Keylen: uint16(len(password))}
		copy(key.Key[:], password)
		key.Addr.Family = unix.AF_INET
		copy(key.Addr.Data[2:], netip.MustParseAddr("10.9.0.1").AsSlice())
		raw.Control(func(fd uintptr) { err = unix.SetsockoptTCPMD5Sig(int(fd), unix.IPPROTO_TCP, unix.TCP_MD5SIG, &key) })
		require(h.t, err)
	}
	go func() {
		for {
			c, err := r.listener.Accept()
			if err != nil {
				return
			}
			select {
			case r.sessions <- c:
			default:
				c.Close()
			}
		}
	}()
	h.t.Cleanup(func() { r.listener.Close() })
	return r
}

// always has every session begin with some bytes, and reads what comes.
func (r *bgpRouter) always(say ...[]byte) {
	go func() {
		for c := range r.sessions {
			go func() {
				defer c.Close()
				for _, bytes := range say {
					if _, err := c.Write(bytes); err != nil {
						return
					}
				}
				io.Copy(io.Discard, c)
			}()
		}
	}()
}

// establish takes the next session, and tells the OPEN that came. capabilities are the router's (RFC 5492).
func (r *bgpRouter) establish(capabilities ...byte) (c net.Conn, open []byte) {
	r.Helper()
	select {
	case c = <-r.sessions:
	case <-time.After(hostDeadline):
		r.Fatal("the load balancer does not connect")
	}
	own := bgpOpenOf(64512, 2)[19:]
	if n := byte(len(capabilities)); n > 0 {
		own = append(append(own[:9], n+2, 2, n), capabilities...)
	}
	c.Write(bgpMessage(bgpOpen, own...))
	c.Write(bgpMessage(bgpKeepalive))
	kind, open, err := readBGP(c)
	require(r.T, err)
	if kind != bgpOpen {
		r.Fatalf("it begins with a message of type %d", kind)
	}
	return c, open
}

// next is the next UPDATE, but for one that says that there are no more.
func (r *bgpRouter) next(c net.Conn) []byte {
	r.Helper()
	for {
		kind, body, err := readBGP(c)
		require(r.T, err)
		if kind == bgpNotification {
			r.Fatalf("notification % x", body)
		}
		if kind == bgpUpdate && !bytes.Equal(body, []byte{0, 0, 0, 0}) {
			return body
		}
	}
}

// gracefulRestart finds the capability in an OPEN (RFC 4724 3): its flags, and those of IPv4.
func gracefulRestart(open []byte) (flags, family byte, found bool) {
	for options := open[10:]; len(options) > 2; options = options[2+int(options[1]):] {
		for capabilities := options[2 : 2+options[1]]; len(capabilities) > 1; capabilities = capabilities[2+int(capabilities[1]):] {
			if value := capabilities[2 : 2+capabilities[1]]; capabilities[0] == 64 && len(value) >= 6 {
				return value[0] >> 4, value[5] >> 7, true
			}
		}
	}
	return 0, 0, false
}

const bgpNode = `
nodes:
  - name: lb1
    state: %s
    bgp: {as: 64600, neighbors: [%s], neighbor_as: 64512, password_file: %s, connect_retry: 2s, announce_delay: 100ms, communities: ["64512:7"], med: 5}
`

func (h *lbHost) withBGP(state string, neighbors ...string) {
	h.write(fmt.Sprintf(bgpNode, state, strings.Join(neighbors, ", "), filepath.Join(h.dir, "password")) + fmt.Sprintf(lbFile, ""))
}

func (h *lbHost) bgpStatus(what string, done func(map[string]api.BGPNeighbor) bool) {
	h.t.Helper()
	await.Nil(h.t, what, func() error {
		var s api.BGPStatus
		if err := h.client.Get(h.t.Context(), api.PathBGP, &s); err != nil {
			return err
		}
		neighbors := map[string]api.BGPNeighbor{}
		for _, n := range s.Neighbors {
			neighbors[n.Address.String()] = n
		}
		if !done(neighbors) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// The VIP's route as it is sent: ORIGIN IGP, AS_PATH 64600, NEXT_HOP, MED, COMMUNITIES.
var vipNLRI = []byte{32, 198, 51, 100, 10}

func TestVIPsAreAnnouncedAndWithdrawnAndKeptOverRestarts(t *testing.T) {
	noRaces(t)
	t.Parallel()
	h := &lbHost{newHost(t, "bgp-a", []string{"10.9.0.1/24"}, []string{"10.9.0.2/24", "10.9.0.3/24", "10.9.0.12/24"})}
	h.role = "bgp-lb"
	require(t, os.WriteFile(filepath.Join(h.dir, "password"), []byte(bgpSecret+"\n"), 0o600))
	r := h.bgpRouter("10.9.0.12", bgpSecret)
	h.withBGP("active", "10.9.0.12")
	h.start()
	c, open := r.establish()
	if flags, family, found := gracefulRestart(open); !found || flags&8 != 0 || family != 0 {
		t.Errorf("a load balancer that begins says that it restarts: %d %d %v", flags, family, found)
	}
	update := r.next(c)
	for what, part := range map[string][]byte{
		"the VIP": vipNLRI, "the next hop": {3, 4, 10, 9, 0, 1}, "the MED": {4, 4, 0, 0, 0, 5}, "the community": {8, 4, 0xfc, 0, 0, 7},
	} {
		if !bytes.Contains(update, part) {
			t.Errorf("% x lacks %s", update, what)
		}
	}
	h.withBGP("draining", "10.9.0.12")
	if update = r.next(c); !bytes.Equal(update, append(append([]byte{0, 5}, vipNLRI...), 0, 0)) {
		t.Errorf("% x does not withdraw the VIP", update)
	}
	h.withBGP("active", "10.9.0.12")
	if update = r.next(c); !bytes.HasSuffix(update, vipNLRI) {
		t.Errorf("% x does not announce it again", update)
	}
	h.kill()
	if kind, body, err := readBGP(c); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the end of a process says %d % x, %v: routers would give up its routes", kind, body, err)
	}
	h.start()
	c, open = r.establish()
	if flags, family, found := gracefulRestart(open); !found || flags&8 == 0 || family != 1 {
		t.Errorf("the next process does not say that packets went on: %d %d %v", flags, family, found)
	}
	if update = r.next(c); !bytes.HasSuffix(update, vipNLRI) {
		t.Errorf("% x: the next process does not announce the VIP first", update)
	}
	said := h.output.String() + h.metrics()
	var status map[string]any
	require(t, h.client.Get(t.Context(), api.PathBGP, &status))
	if strings.Contains(said+fmt.Sprint(status), bgpSecret) {
		t.Error("the password is shown")
	}
	for _, series := range []string{`ballast_bgp_session_up{neighbor="10.9.0.12"} 1`, "ballast_bgp_announced_vips 1", "ballast_bgp_withdrawals_total 0"} {
		if !strings.Contains(said, series) {
			t.Errorf("metrics lack %s", series)
		}
	}

	h.write(fmt.Sprintf(bgpNode, "active", "10.9.0.12", filepath.Join(h.dir, "password")) + strings.Replace(fmt.Sprintf(lbFile, ""), "ports: [80],", "ports: [80], announce: off,", 1))
	if update = r.next(c); !bytes.Equal(update, append(append([]byte{0, 5}, vipNLRI...), 0, 0)) {
		t.Errorf("% x does not withdraw a VIP that is given up", update)
	}
	h.awaitMetrics("given up", "ballast_bgp_announced_vips 0")
	if strings.Contains(h.metrics(), "ballast_bgp_vip_sessions{") {
		t.Error("an alert would say that a VIP that is given up is not announced")
	}
}

// Promise: Whatever a BGP neighbour sends changes nothing at the load balancer: routes are refused, 10,000 at most
// are kept, and garbage ends the session.
func TestNeighboursThatMisbehaveAreNamedAndCostLittle(t *testing.T) {
	noRaces(t)
	t.Parallel()
	h := &lbHost{newHost(t, "bgp-b", []string{"10.9.0.1/24"}, []string{"10.9.0.2/24", "10.9.0.3/24", "10.9.0.12/24", "10.9.0.13/24", "10.9.0.14/24", "10.9.0.15/24", "10.9.0.16/24", "10.9.0.17/24"})}
	h.role = "bgp-lb"
	require(t, os.WriteFile(filepath.Join(h.dir, "password"), []byte(bgpSecret+"\n"), 0o600))
	good := h.bgpRouter("10.9.0.12", bgpSecret)
	h.bgpRouter("10.9.0.13", bgpSecret).always(bgpOpenOf(64999, 3))
	h.bgpRouter("10.9.0.14", bgpSecret).always(bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 300))
	h.bgpRouter("10.9.0.15", "another password").always()
	h.bgpRouter("10.9.0.16", bgpSecret).always(append([][]byte{bgpOpenOf(64512, 6), bgpMessage(bgpKeepalive)}, fullTable(400_000)...)...)
	h.bgpRouter("10.9.0.17", bgpSecret).always(bgpMessage(bgpNotification, 6, 5))
	h.withBGP("active", "10.9.0.12", "10.9.0.13", "10.9.0.14", "10.9.0.15", "10.9.0.16", "10.9.0.17")
	h.start()
	c, _ := good.establish()
	defer c.Close()
	good.next(c)
	before := h.anonymous()
	h.bgpStatus("each is named", func(n map[string]api.BGPNeighbor) bool {
		return n["10.9.0.12"].Up &&
			strings.Contains(n["10.9.0.13"].Why, "it is in another AS than configured (2/2)") &&
			(strings.Contains(n["10.9.0.14"].Why, "it sent what is not BGP") || strings.Contains(n["10.9.0.14"].Why, "message header error")) &&
			strings.Contains(n["10.9.0.15"].Why, "i/o timeout") &&
			strings.Contains(n["10.9.0.16"].Why, "it sent more than 10000 routes, and none is wanted") &&
			strings.Contains(n["10.9.0.17"].Why, "it refused this load balancer")
	})
	if grown := h.anonymous() - before; grown > 64<<20 {
		t.Errorf("400,000 routes of a neighbour cost %d MiB", grown>>20)
	}
	await.True(t, "problems name them", func() bool {
		var status api.LBStatus
		require(t, h.client.Get(t.Context(), api.PathStatus, &status))
		return strings.Count(strings.Join(status.Problems, "\n"), "bgp: no session with 10.9.0.") == 5 && status.Ready
	})
	if !strings.Contains(h.output.String(), "it sent more than 10000 routes") {
		t.Error("the log does not say so")
	}
}

func TestARouterThatTakesNoIPv6NextHopsGetsIPv6VIPsAlone(t *testing.T) {
	noRaces(t)
	t.Parallel()
	h := &lbHost{newHost(t, "bgp-c", []string{"10.9.0.1/24", "fd09::1/64"}, []string{"10.9.0.2/24", "10.9.0.3/24", "fd09::2/64"})}
	h.role = "bgp-lb"
	r := h.bgpRouter("fd09::2", "")
	h.write("nodes: [{name: lb1, bgp: {as: 64600, router_id: 10.9.0.1, neighbors: [\"fd09::2 as 64512\"], connect_retry: 2s}}]\n" + fmt.Sprintf(lbFile, "") +
		"  - {name: web6, vip: \"2001:db8:51::10\", ports: [80], servers: [{name: s1, address: 10.9.0.2, id: 1}]}\n")
	h.start()
	families := func(open []byte) (list []byte) {
		for _, capability := range [][]byte{{1, 4, 0, 1, 0, 1}, {1, 4, 0, 2, 0, 1}} {
			if bytes.Contains(open, capability) {
				list = append(list, capability[3])
			}
		}
		return list
	}
	multiprotocol := []byte{1, 4, 0, 1, 0, 1, 1, 4, 0, 2, 0, 1}
	c, open := r.establish(multiprotocol...)
	if !bytes.Equal(families(open), []byte{1, 2}) {
		t.Errorf("it offers % x", families(open))
	}
	go io.Copy(io.Discard, c)
	c, open = r.establish(multiprotocol...)
	defer c.Close()
	if !bytes.Equal(families(open), []byte{2}) {
		t.Errorf("it still offers % x", families(open))
	}
	vip := netip.MustParseAddr("2001:db8:51::10").As16()
	if update := r.next(c); !bytes.Contains(update, append([]byte{128}, vip[:]...)) || bytes.Contains(update, vipNLRI) {
		t.Errorf("% x", update)
	}
	await.True(t, "it says so", func() bool {
		var status api.LBStatus
		require(t, h.client.Get(t.Context(), api.PathStatus, &status))
		return strings.Contains(strings.Join(status.Problems, "\n"), "bgp: no session carries 198.51.100.10/32") &&
			strings.Contains(h.output.String(), "takes no IPv6 next hops for IPv4 VIPs (RFC 8950)")
	})
}

// fullTable are UPDATEs of so many host routes.
func fullTable(routes int) (messages [][]byte) {
	attributes := []byte{0x40, 1, 1, 0, 0x40, 2, 4, 2, 1, 0xfc, 0, 0x40, 3, 4, 10, 9, 0, 6}
	for from := 0; from < routes; from += 700 {
		body := append([]byte{0, 0, 0, byte(len(attributes))}, attributes...)
		for i := from; i < min(from+700, routes); i++ {
			body = append(body, 32, 20, byte(i>>16), byte(i>>8), byte(i))
		}
		messages = append(messages, bgpMessage(bgpUpdate, body...))
	}
	return messages
}

// anonymous is the daemon's memory in bytes.
func (h *lbHost) anonymous() (bytes int64) {
	h.t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.process.Process.Pid))
	require(h.t, err)
	for line := range strings.Lines(string(content)) {
		fmt.Sscanf(line, "RssAnon: %d kB", &bytes)
	}
	return bytes << 10
}
