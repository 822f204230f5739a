// Affinity history: timestamps carry the column that a connection was accepted in.
package server_test

import (
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/server"
)

func TestEveryPacketCarriesTheColumnThatAcceptedIt(t *testing.T) {
	for _, test := range []struct {
		name      string
		sysctls   map[string]string
		multipath bool
	}{
		{name: "default"},
		{name: "multipath listener", multipath: true},
		{name: "SYN cookies", sysctls: map[string]string{"net/ipv4/tcp_syncookies": "2"}},
		{name: "SYN cookies and a multipath listener", sysctls: map[string]string{"net/ipv4/tcp_syncookies": "2"}, multipath: true},
		{name: "timestamps without offset", sysctls: map[string]string{"net/ipv4/tcp_timestamps": "2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newOffers(t, rigOptions{sysctls: test.sysctls})
			r.listen(test.multipath)
			before, w := r.rejects(), r.watch()
			r.browse(20, 1, 100, 70000, 1<<20)
			r.verify(w, before)
			r.expectRestored(test.name)
			if n := r.count("egress_marked_unknown_column"); n != 0 {
				t.Errorf("%d packets of a column that was not known", n)
			}
		})
	}
}

// The server's first segment is the first that its socket's storage could know the column by.
func TestServersThatSpeakFirstKnowTheColumn(t *testing.T) {
	r := newOffers(t, rigOptions{sysctls: map[string]string{"net/ipv4/tcp_fastopen": "2"}})
	progtest.Check(t, r.client.Sysctl("net/ipv4/tcp_fastopen", "1"))
	before, w := r.rejects(), r.watch()
	for v, vip := range r.vips {
		config := net.ListenConfig{Control: setInt(unix.TCP_FASTOPEN, 16)}
		config.SetMultipathTCP(false)
		listener := r.listener(vip, config)
		for i := range 8 {
			client := r.dialFrom(firstPort+i, vip)
			server, err := listener.Accept()
			progtest.Check(t, err)
			exchange(t, server, client)
			exchange(t, client, server)
			progtest.Check(t, server.(*net.TCPConn).CloseWrite()) // TIME_WAIT is here
			_, err = client.Read(make([]byte, 1))
			if !errors.Is(err, io.EOF) {
				t.Fatalf("read: %v", err)
			}
			_, err = client.Write(make([]byte, 50000))
			progtest.Check(t, err)
			_, err = io.ReadFull(server, make([]byte, 50000))
			progtest.Check(t, err)
			server.Close()
			progtest.Check(t, client.Close())
		}
		for i := range 8 {
			var conn net.Conn
			progtest.Check(t, r.client.Do(func() (err error) {
				dialer := net.Dialer{Timeout: progtest.Deadline, FallbackDelay: -1, Control: setInt(unix.TCP_FASTOPEN_CONNECT, 1)}
				dialer.SetMultipathTCP(false)
				dialer.LocalAddr = &net.TCPAddr{Port: firstPort + 100 + v*100 + i}
				conn, err = dialer.Dial("tcp", netip.AddrPortFrom(vip, servicePort).String())
				return err
			}))
			_, err := conn.Write([]byte("hello"))
			progtest.Check(t, err)
			server, err := listener.Accept()
			progtest.Check(t, err)
			_, err = io.ReadFull(server, make([]byte, 5))
			progtest.Check(t, err)
			exchange(t, server, conn)
			conn.Close()
			server.Close()
		}
	}
	r.await("TIME_WAIT answers", func() bool {
		return r.count("ingress_restored_time_wait") >= 16 && r.count("egress_marked_no_socket") >= 16
	})
	r.verify(w, before)
	r.expectRestored("server first")
	if opened := r.netstat("TCPFastOpenPassive")["TCPFastOpenPassive"]; opened == 0 {
		t.Error("no connection was opened fast")
	}
	if n := r.count("egress_marked_unknown_column"); n != 0 {
		t.Errorf("%d packets of a column that was not known", n)
	}
}

func TestConnectionsThatTheServerRedirectsCarryTheColumn(t *testing.T) {
	for _, cookies := range []string{"1", "2"} {
		r := newOffers(t, rigOptions{sysctls: map[string]string{"net/ipv4/tcp_syncookies": cookies}})
		r.translate(prerouting("inet", "tcp dport 80 redirect to :17011"))
		r.listenAt(r.server, ":17011")
		before, w := r.rejects(), r.watch()
		r.browse(16, 1, 1000, 100000)
		r.verify(w, before)
		if r.count("egress_marked_translated") == 0 || r.count("egress_marked_unknown_column") != 0 {
			t.Error("not translated, or of no known column")
		}
	}
}

// An RST of a connection carries timestamps too, in either direction.
func TestResetsCarryTheColumn(t *testing.T) {
	r := newOffers(t, rigOptions{})
	before, w := r.rejects(), r.watch()
	for v, vip := range r.vips {
		listener := r.listener(vip, net.ListenConfig{})
		for i := range 8 {
			port := firstPort + 8*v + i
			client := r.dialFrom(port, vip)
			server, err := listener.Accept()
			progtest.Check(t, err)
			exchange(t, client, server)
			first, second, resets := server, client, r.resets.Load()
			if i < 4 {
				first, second = client, server
			}
			progtest.Check(t, first.(*net.TCPConn).SetLinger(0))
			progtest.Check(t, first.Close())
			if _, err := second.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
				t.Fatalf("read: %v", err)
			}
			second.Close()
			r.await("an RST with timestamps", func() bool {
				last, ok := w.flows.Load(clientOf(port, vip))
				return i < 4 && r.resets.Load() > resets || i >= 4 && ok && last.(lastSeen).flags&4 != 0
			})
		}
	}
	r.verify(w, before)
}

// The server's kernel tells what its clock was: echoes are restored to that, whatever silences were, late ones to what they were, and
// those of another column not at all.
func TestColumnsAreTakenOffExactly(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BALLAST_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("BALLAST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	r := newOffers(t, rigOptions{plain: true})
	dir := r.pins()
	r.attach(dir)
	r.prepare()
	storage, err := ebpf.LoadPinnedMap(dir+"/"+server.Layout+"/hold_backs", nil)
	progtest.Check(t, err)
	t.Cleanup(func() { storage.Close() })
	before, w := r.rejects(), r.watch()
	for v, vip := range r.vips {
		listener := r.listener(vip, net.ListenConfig{KeepAlive: -1})
		for i := range 4 {
			c := &turner{rig: r.rig, w: w, port: firstPort + 4*v + i, vip: vip}
			c.conn = r.dialFrom(c.port, vip)
			defer c.conn.Close()
			server, err := listener.Accept()
			progtest.Check(t, err)
			defer server.Close()
			exchange(t, c.conn, server) // the storage is there
			c.talkTo(server, false)
			for range 60 {
				switch random.IntN(6) {
				case 0:
					length := time.Duration(random.Int64N(int64(20*24*time.Hour))) >> random.IntN(20)
					silence(t, storage, server, length)
					c.sent = c.sent[len(c.sent)-1:]
					c.sent[0].kernel -= uint32(length.Milliseconds())
					c.talkTo(server, random.IntN(2) == 0)
				case 1:
					if forged := c.last() ^ (1 + random.Uint32N(3)); c.echo(forged) != forged {
						t.Errorf("%#x was taken for an echo of %#x", forged, c.last())
					}
				case 2, 3:
					sent := c.sent[random.IntN(len(c.sent))]
					if now := c.echo(sent.wire); now != sent.kernel {
						t.Errorf("%#x is restored to %#x, before to %#x", sent.wire, now, sent.kernel)
					}
				default:
					c.talkTo(server, random.IntN(2) == 0)
				}
			}
		}
	}
	if r.count("egress_marked_held_back") == 0 || r.count("ingress_bad_cookie") == 0 {
		t.Error("never held back, or no echo forged")
	}
	// The watcher does not know of the echoes that the test has told the agent: the kernels judge.
	if after := r.rejects(); !maps.Equal(after, before) {
		t.Errorf("rejected timestamps: %v before, %v after", before, after)
	}
	if r.seen.Load() == 0 || r.lost.Load() != 0 {
		t.Errorf("of %d packets %d name another column than their connection's, first %v", r.seen.Load(), r.lost.Load(), r.first.Load())
	}
}

// talkTo notes a timestamp that the server sends, and checks it by the clock of the server's socket.
func (c *turner) talkTo(server net.Conn, serverFirst bool) {
	c.t.Helper()
	from, sent := clockOf(c.t, server), turned{}
	if serverFirst {
		exchange(c.t, server, c.conn)
	} else {
		exchange(c.t, c.conn, server)
	}
	c.rig.await("a new timestamp", func() bool {
		last, ok := c.w.flows.Load(clientOf(c.port, c.vip))
		if !ok {
			return false
		}
		sent.wire = last.(lastSeen).value
		sent.kernel = c.echo(sent.wire)
		return int32(sent.kernel-from) >= 0
	})
	if to := clockOf(c.t, server) | 1; int32(to-sent.kernel) < 0 {
		c.t.Errorf("%#x is restored to %#x, when the server's clock was %#x to %#x", sent.wire, sent.kernel, from, to)
	}
	c.sent = append(c.sent, sent)
}

// clockOf is what a socket would write into TSval now. Linux tells it without its lowest bit.
func clockOf(t *testing.T, conn net.Conn) (clock uint32) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	progtest.Check(t, err)
	progtest.Check(t, raw.Control(func(fd uintptr) {
		value, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_TIMESTAMP)
		progtest.Check(t, err)
		clock = uint32(value) &^ 1
	}))
	return clock
}

// No key is in a column: rotations change nothing and wait for nobody. Agents come and go.
func TestColumnsOutliveRotationsAndAgents(t *testing.T) {
	r := newOffers(t, rigOptions{plain: true})
	dir := r.pins()
	r.attach(dir)
	r.prepare()
	r.listen(true)
	before, w := r.rejects(), r.watch()
	silent := []net.Conn{r.dial(r.vips[0]), r.dial(r.vips[1])}
	wait := r.transfer()
	for epoch := range uint32(4) {
		r.fleet.Keys.Cookie[2+epoch] = [16]byte{9, byte(epoch)}
		delete(r.fleet.Keys.Cookie, epoch)
		r.fleet.Keys.Current = 2 + epoch
		r.agent.Close()
		r.attach(dir)
		r.browse(4, 1000)
	}
	wait()
	for _, conn := range silent {
		defer conn.Close()
		r.awaitEchoes([2]uint64{})
		progtest.Check(t, fetch(conn, 100000))
		r.awaitEchoes([2]uint64{})
	}
	r.verify(w, before)
	r.expectRestored("rotation")
	if n := r.count("egress_marked_renewed"); n != 0 {
		t.Errorf("%d cookies were renewed, and there are none", n)
	}
}

// Nothing else keeps a mark in order after days: the wire clock waits for the client.
func TestColumnsInLongSilences(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	r := newOffers(t, rigOptions{plain: true})
	dir := r.pins()
	r.attach(dir)
	r.prepare()
	storage, err := ebpf.LoadPinnedMap(dir+"/"+server.Layout+"/hold_backs", nil)
	progtest.Check(t, err)
	t.Cleanup(func() { storage.Close() })
	before, w := r.rejects(), r.watch()
	for i, vip := range r.vips {
		listener := r.listener(vip, net.ListenConfig{KeepAlive: -1})
		client := r.dialFrom(firstPort+1+i, vip)
		defer client.Close()
		server, err := listener.Accept()
		progtest.Check(t, err)
		defer server.Close()
		exchange(t, client, server)
		for range 60 {
			silence(t, storage, server, time.Duration(random.Int64N(int64(20*24*time.Hour)))>>random.IntN(20))
			if random.IntN(2) == 0 {
				exchange(t, client, server)
			} else {
				exchange(t, server, client)
			}
		}
	}
	if r.count("egress_marked_held_back") == 0 {
		t.Error("never held back")
	}
	r.verify(w, before)
	r.expectRestored("silences")
}

// Those have no column, and go as placement says.
func TestConnectionsOlderThanTheColumnsAreLeftAlone(t *testing.T) {
	r := newOffers(t, rigOptions{plain: true})
	r.direct.Store(true)
	r.listen(false)
	old := []net.Conn{r.dial(r.vips[0]), r.dial(r.vips[1])}
	for _, conn := range old {
		progtest.Check(t, fetch(conn, 1000))
	}
	silent := []net.Conn{r.dial(r.vips[0]), r.dial(r.vips[1])}
	r.attach("")
	before := r.rejects()
	for _, conn := range append(old, silent...) {
		progtest.Check(t, fetch(conn, 100000))
		conn.Close()
	}
	if r.count("egress_marked") != 0 || r.count("ingress_restored") != 0 || r.count("egress_unmarked_older_than_agent") == 0 {
		t.Error("connections from before were marked")
	}
	if after := r.rejects(); !maps.Equal(after, before) {
		t.Errorf("rejected timestamps: %v before, %v after", before, after)
	}
}

// bare is a TCP segment of a client that has no TCP.
func bare(t *testing.T, client, vip netip.Addr, port uint16, flags byte, sequence, acknowledged, value, echo uint32) []byte {
	stamp := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, value), echo)
	tcp := &layers.TCP{SrcPort: layers.TCPPort(port), DstPort: servicePort, Seq: sequence, Ack: acknowledged, Window: 1000, SYN: flags&2 != 0, ACK: flags&16 != 0,
		Options: []layers.TCPOption{{OptionType: layers.TCPOptionKindNop}, {OptionType: layers.TCPOptionKindNop},
			{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: stamp}}}
	ip := ipLayer(client, vip, layers.IPProtocolTCP, 0)
	tcp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer))
	return build(t, ip, tcp)
}

func (r *offers) columns(dir string) *ebpf.Map {
	r.t.Helper()
	columns, err := ebpf.LoadPinnedMap(dir+"/"+server.Layout+"/columns", nil)
	progtest.Check(r.t, err)
	r.t.Cleanup(func() { columns.Close() })
	return columns
}

// forget does to a map what a flood does.
func forget(t *testing.T, m *ebpf.Map) (entries int) {
	t.Helper()
	var keys [][]byte
	var key, value []byte
	for all := m.Iterate(); all.Next(&key, &value); {
		keys = append(keys, append([]byte(nil), key...))
	}
	for _, key := range keys {
		progtest.Check(t, m.Delete(key))
	}
	return len(keys)
}

// A client that is not there: the server sends its SYN-ACK again. A flood of SYNs may push its column out in between; that is counted.
func TestASYNACKThatIsSentAgainNamesItsColumn(t *testing.T) {
	r := newOffers(t, rigOptions{plain: true})
	dir := r.pins()
	r.attach(dir)
	r.prepare()
	columns := r.columns(dir)
	r.listen(false)
	client := netip.MustParseAddr("10.9.0.77")
	r.absent(client)
	w := r.watch()
	const port = firstPort + 2
	from := netip.AddrPortFrom(client, port)
	column := func() int {
		if last, ok := w.flows.Load(from); ok {
			return int(last.(lastSeen).tag)
		}
		return -1
	}
	r.inject(r.wrap(tunnel{from: balancers[0], to: own4, gue: offer(2)}, bare(t, client, r.vips[0], port, 2, 1, 0, 1, 0)))
	r.await("a SYN-ACK", func() bool { return column() == 2 })
	seen := w.seen.Load()
	r.await("another one", func() bool { return w.seen.Load() > seen })
	if column() != 2 || w.wrong.Load() != 0 || r.count("egress_marked_unknown_column") != 0 {
		t.Errorf("sent again with column %d; first wrong: %v", column(), w.first.Load())
	}
	// Another load balancer, which sees the table otherwise, offers the SYN again as the last candidate of another column.
	r.inject(r.wrap(tunnel{from: balancers[0], to: own4, gue: offer(3)}, bare(t, client, r.vips[0], port, 2, 1, 0, 1, 0)))
	r.await("a SYN-ACK of the other column", func() bool { return column() == 3 })
	if n := forget(t, columns); n != 1 {
		t.Errorf("%d columns are kept for one handshake", n)
	}
	r.await("a SYN-ACK of the first column", func() bool { return column() == 0 })
	if r.count("egress_marked_unknown_column") == 0 {
		t.Error("that a column was forgotten is not counted")
	}
}

// Who has said nothing since the handshake is known by its echo of that, if he speaks first.
func TestClientsTellAServerWhatItHasForgotten(t *testing.T) {
	r := newOffers(t, rigOptions{plain: true})
	dir := r.pins()
	r.attach(dir)
	r.prepare()
	columns := r.columns(dir)
	before, w := r.rejects(), r.watch()
	r.listen(false)
	var clients []net.Conn
	for i := range 8 {
		clients = append(clients, r.dialFrom(firstPort+i, r.vips[i%2]))
	}
	r.await("columns", func() bool { return r.count("ingress_restored_request") == 8 })
	if n := forget(t, columns); n == 0 { // who has had a second SYN-ACK has said something
		t.Error("no column is kept for eight handshakes")
	}
	for _, conn := range clients {
		progtest.Check(t, fetch(conn, 1000))
		conn.Close()
	}
	r.verify(w, before)
	if n := r.count("egress_marked_unknown_column"); n != 0 {
		t.Errorf("%d packets of a column that was not known", n)
	}
}

// No key is in a column, so nobody's echo may change one, and no flood of ACKs fills the map.
func TestForgedEchoesChangeNoColumn(t *testing.T) {
	r := newOffers(t, rigOptions{plain: true})
	dir := r.pins()
	r.attach(dir)
	r.prepare()
	columns := r.columns(dir)
	r.listen(false)
	conns := []net.Conn{r.dialFrom(firstPort+1, r.vips[0]), r.dialFrom(firstPort+2, r.vips[0])}
	progtest.Check(t, fetch(conns[0], 10)) // the other one has said nothing yet
	for i := range 64 {
		for _, port := range []uint16{firstPort + 1, firstPort + 2} {
			packet := bare(t, balancers[0], r.vips[0], port, 16, uint32(i)<<26, 7, 1, uint32(i)<<26|uint32(i)%4)
			r.inject(append(r.header(0, r.vips[0]), packet...))
		}
	}
	bad := r.count("ingress_bad_cookie")
	if bad < 32 {
		t.Errorf("%d of the forged echoes were noticed", bad)
	}
	before, w := r.rejects(), r.watch()
	for _, conn := range conns {
		progtest.Check(t, fetch(conn, 100000))
		conn.Close()
	}
	r.verify(w, before)

	forget(t, columns)
	stranger := netip.MustParseAddr("10.9.0.77")
	r.absent(stranger)
	for i := range uint16(200) {
		packet := bare(t, stranger, r.vips[0], 1000+i, 16, 1, 1, 1, uint32(i)<<20|3)
		r.inject(append(r.header(0, r.vips[0]), packet...))
	}
	r.await("forged ACKs", func() bool { return r.count("ingress_bad_cookie") >= bad+200 })
	if n := forget(t, columns); n != 0 {
		t.Errorf("%d entries for connections that are not there", n)
	}
}
