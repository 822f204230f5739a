package server_test

import (
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/server"
)

// holdBack is struct hold_back.
type holdBack struct {
	Delta, HeldFrom, DeltaBefore, NewestSent, NewestEcho, Generation uint32
	Cookie, CookieBefore                                             uint16
	CookieBits, State                                                uint8
	Tag                                                              uint16
}

// silence makes as much of the server's clock pass for the agent as if both ends of a connection had said nothing for so long: what was
// sent so far is older. conn is the server's end.
func silence(t *testing.T, storage *ebpf.Map, conn net.Conn, length time.Duration) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	progtest.Check(t, err)
	progtest.Check(t, raw.Control(func(fd uintptr) {
		var h holdBack
		progtest.Check(t, storage.Lookup(uint32(fd), &h))
		h.Delta -= uint32(length.Milliseconds())
		h.DeltaBefore -= uint32(length.Milliseconds())
		progtest.Check(t, storage.Update(uint32(fd), h, ebpf.UpdateExist))
	}))
}

// After a silence the server speaks first, or the client; a load balancer has forgotten the connection and gives it another tag, keys have
// rotated once: no packet is refused, none is too far ahead, none steps back.
func TestTagsChangeInLongSilences(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BALLAST_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("BALLAST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, bits := range []uint8{14, 16} {
		r := newRig(t, rigOptions{table: true, bits: bits, plain: true})
		dir := r.pins()
		r.attach(dir)
		storage, err := ebpf.LoadPinnedMap(dir+"/"+server.Layout+"/hold_backs", nil)
		progtest.Check(t, err)
		t.Cleanup(func() { storage.Close() })
		r.fleet.Keys.Cookie[2] = [16]byte{9, 9, 9}
		tagger, before, w := newTagger(r), r.rejects(), r.watch()
		for i, vip := range r.vips {
			listener := r.listener(vip, net.ListenConfig{})
			tagger.want(firstPort+i, vip, 1)
			client := r.dialFrom(firstPort+i, vip)
			defer client.Close()
			server, err := listener.Accept()
			progtest.Check(t, err)
			defer server.Close()
			exchange(t, client, server)
			for range 60 {
				silence(t, storage, server, time.Duration(random.Int64N(int64(time.Hour)))>>random.IntN(20))
				if random.IntN(3) == 0 {
					r.fleet.Keys.Current = 3 - r.fleet.Keys.Current
					r.publish()
				}
				if random.IntN(2) == 0 {
					tagger.want(firstPort+i, vip, uint16(1+random.IntN(63)))
				}
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
}

// exchange sends a few bytes from one end to the other, and some back.
func exchange(t *testing.T, first, second net.Conn) {
	t.Helper()
	for _, ends := range [][2]net.Conn{{first, second}, {second, first}} {
		for _, end := range ends {
			progtest.Check(t, end.SetDeadline(time.Now().Add(progtest.Deadline)))
		}
		_, err := ends[0].Write(make([]byte, 10))
		progtest.Check(t, err)
		for read := 0; read < 10; {
			n, err := ends[1].Read(make([]byte, 10))
			progtest.Check(t, err)
			read += n
		}
	}
}
