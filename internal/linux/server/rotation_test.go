package server_test

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/server"
)

// held is a connection that says nothing; the server's keepalive probes alone pass.
type held struct{ client, server net.Conn }

// hold makes one to each VIP, after some talk.
func (r *rig) hold() (connections []held) {
	r.t.Helper()
	for _, vip := range r.vips {
		config := net.ListenConfig{KeepAlive: -1}
		config.SetMultipathTCP(false)
		listener := r.listener(vip, config)
		h := held{client: r.dial(vip)}
		var err error
		h.server, err = listener.Accept()
		progtest.Check(r.t, err)
		r.t.Cleanup(func() { h.client.Close(); h.server.Close() })
		go answer(h.server)
		progtest.Check(r.t, fetch(h.client, 1000))
		connections = append(connections, h)
	}
	return connections
}

func (h held) keepalive(t *testing.T) {
	t.Helper()
	progtest.Check(t, h.server.(*net.TCPConn).SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 60}))
}

// echoed is the parity of the epoch that the client has echoed last on the wire.
func (r *rig) echoed(w *watcher, conn net.Conn) uint32 {
	echo, ok := w.echoes.Load(netip.MustParseAddrPort(conn.LocalAddr().String()))
	if !ok {
		r.t.Fatalf("%s has echoed nothing", conn.LocalAddr())
	}
	return cookie.EpochBit(14, echo.(uint32))
}

func (r *rig) rotateTo(epoch uint32) {
	r.t.Helper()
	r.fleet.Keys.Cookie[epoch] = [16]byte{9, byte(epoch)}
	r.fleet.Keys.Current = epoch
	r.publish()
}

func (r *rig) awaitEchoes(want [2]uint64) {
	r.t.Helper()
	var have [2]uint64
	defer func() { r.t.Logf("echoes by parity %v", have) }()
	r.await("echoes", func() bool {
		progtest.Check(r.t, r.server.Do(func() (err error) {
			have, err = r.agent.Echoes()
			return err
		}))
		return have == want
	})
}

// What detaches an agent, or waits until nothing lives, may be of another version, and is not the agent: it leaves all as it is.
func TestLivingConnectionsAreCountedByWhatIsPinned(t *testing.T) {
	r := newRig(t, rigOptions{plain: true})
	dir := r.pins()
	r.attach(dir)
	connections := r.hold()
	r.awaitEchoes([2]uint64{0, 2})
	expect := func(when string, want uint64) {
		t.Helper()
		pinned, err := filepath.Glob(dir + "/*/*")
		progtest.Check(t, err)
		var have uint64
		progtest.Check(t, r.server.Do(func() (err error) {
			have, err = server.Living(dir)
			return err
		}))
		if have != want {
			t.Errorf("%s: %d connections, not %d", when, have, want)
		}
		if after, err := filepath.Glob(dir + "/*/*"); err != nil || !slices.Equal(after, pinned) {
			t.Errorf("%s: %q are pinned (%v), before it was %q", when, after, err, pinned)
		}
	}
	expect("of this layout", 2)
	progtest.Check(t, os.Rename(dir+"/"+server.Layout, dir+"/agent-v1"))
	expect("of another layout", 2)
	progtest.Check(t, os.Remove(dir+"/agent-v1/hold_backs"))
	if have, err := server.Living(dir); err == nil {
		t.Errorf("%d connections live, although what they have cannot be found", have)
	}
	for _, h := range connections {
		progtest.Check(t, fetch(h.client, 1000))
	}
}

// A client answers a probe of a keepalive without taking its timestamp. So it must be made to take one, or a rotation would leave it behind.
//
// Promise: A rotation keeps connections that only the server's keepalives hold, because the second probe renews
// the cookie.
// Also held by TestARotationOfKeysWaitsForSilentClientsAndLostNodes.
func TestServersKeepalivesRenewTheCookieOfSilentConnections(t *testing.T) {
	r := newRig(t, rigOptions{})
	before, w := r.rejects(), r.watch()
	connections := r.hold()
	r.awaitEchoes([2]uint64{0, 2})
	r.rotateTo(2)
	r.awaitEchoes([2]uint64{0, 2})
	for _, h := range connections {
		h.keepalive(t)
	}
	r.awaitEchoes([2]uint64{2, 0})
	for _, h := range connections {
		r.await("an echo of the new key's cookie on the wire", func() bool { return r.echoed(w, h.client) == 0 })
	}
	if r.count("egress_marked_renewed") == 0 || r.count("egress_copied") == 0 {
		t.Error("no probe had a copy")
	}
	delete(r.fleet.Keys.Cookie, 1)
	r.publish()
	for _, h := range connections {
		progtest.Check(t, fetch(h.client, 100000))
	}
	r.verify(w, before)
}

// The clock on the wire is held back then: the cookie cannot turn before the client has echoed something newer.
func TestServersKeepalivesRenewTheCookieAfterLongSilence(t *testing.T) {
	r := newRig(t, rigOptions{plain: true})
	dir := r.pins()
	r.attach(dir)
	storage, err := ebpf.LoadPinnedMap(dir+"/"+server.Layout+"/hold_backs", nil)
	progtest.Check(t, err)
	defer storage.Close()
	before, w := r.rejects(), r.watch()
	connections := r.hold()
	for _, h := range connections {
		silence(t, storage, h.server, 20*time.Minute)
		h.keepalive(t)
	}
	r.await("a wire clock that is held back", func() bool { return r.count("egress_marked_held_back") >= 4 })
	for epoch := uint32(2); epoch < 4; epoch++ {
		r.rotateTo(epoch)
		want := [2]uint64{}
		want[epoch&1] = 2
		r.awaitEchoes(want)
	}
	for _, h := range connections {
		progtest.Check(t, fetch(h.client, 100000))
	}
	r.verify(w, before)
}

func TestWhoHasSaidNothingSinceTheHandshakeIsCountedByTheEpochOfThat(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.listen(false)
	old := []net.Conn{r.dial(r.vips[0]), r.dial(r.vips[1])}
	r.awaitEchoes([2]uint64{0, 2})
	r.rotateTo(2)
	r.awaitEchoes([2]uint64{0, 2})
	time.Sleep(100 * time.Millisecond) // handshakes at the very moment of the turn count as older
	young := r.dial(r.vips[0])
	r.awaitEchoes([2]uint64{1, 2})
	for _, conn := range append(old, young) {
		progtest.Check(t, fetch(conn, 1000))
	}
	r.awaitEchoes([2]uint64{3, 0})
	for _, conn := range append(old, young) {
		conn.Close()
	}
	r.awaitEchoes([2]uint64{})
}

// The maps that hold what connections need are those of the process before, whatever else has another shape.
func TestAnUpgradeWithAnotherLayoutKeepsTheMarks(t *testing.T) {
	r := newRig(t, rigOptions{plain: true})
	dir := r.pins()
	r.attach(dir)
	before, w := r.rejects(), r.watch()
	connections := r.hold()
	progtest.Check(t, os.Rename(dir+"/"+server.Layout, dir+"/agent-v0"))
	old := r.agent
	r.attach(dir)
	progtest.Check(t, old.Close())
	progtest.Check(t, r.server.Do(func() error { return r.agent.Attached() }))
	if _, err := os.Stat(dir + "/agent-v0"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the maps of the layout before are still there: %v", err)
	}
	for _, h := range connections {
		progtest.Check(t, fetch(h.client, 100000))
	}
	r.verify(w, before)
	if n := r.count("egress_unmarked_older_than_agent"); n != 0 {
		t.Errorf("%d packets of connections that the new process forgot", n)
	}
}

// They have no socket at the service's address: the kernel's connection tracking knows which of them live. A listener that is a service's
// itself gives its storage to those that are redirected to it, which is not for them.
//
// Promise: Connections that the server translates (REDIRECT, DNAT, published ports) are kept, while fewer than
// 65,536 others, ended ones included, have sent since.
func TestConnectionsThatTheServerTranslatesAreCountedByTheirEpoch(t *testing.T) {
	for name, served := range map[string]bool{"to a port of no service": false, "to another service's port": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigOptions{})
			if served {
				r.serveToo(17011)
			}
			r.translate(prerouting("inet", "tcp dport 80 redirect to :17011"))
			r.listenAt(r.server, ":17011")
			if served {
				progtest.Check(t, r.dialDirectly(17011).Close())
			}
			connections := []net.Conn{r.dial(r.vips[0]), r.dial(r.vips[1]), r.dial(r.vips[0])}
			for _, conn := range connections {
				progtest.Check(t, fetch(conn, 1000))
			}
			r.awaitEchoes([2]uint64{0, 3})
			r.rotateTo(2)
			progtest.Check(t, fetch(connections[0], 1000))
			r.awaitEchoes([2]uint64{1, 2})
			progtest.Check(t, connections[2].Close())
			r.awaitEchoes([2]uint64{1, 1})
			progtest.Check(t, fetch(connections[1], 1000))
			r.awaitEchoes([2]uint64{2, 0})
			for _, conn := range connections[:2] {
				progtest.Check(t, conn.Close())
			}
			r.awaitEchoes([2]uint64{})
		})
	}
}
