package server_test

import (
	"net"
	"sync/atomic"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
)

// What a load balancer puts into the cookie of a client's packets, the server's packets carry from the first answer on, and then nothing
// has to be put in any more. Neither kernel notices.
func TestConnectionsCarryTheTagThatIsPutIntoTheirPackets(t *testing.T) {
	for _, test := range []struct {
		name      string
		options   rigOptions
		multipath bool
	}{
		{name: "default"},
		{name: "SYN cookies, multipath listener", options: rigOptions{sysctls: map[string]string{"net/ipv4/tcp_syncookies": "2"}}, multipath: true},
		{name: "16 bits, small MTU", options: rigOptions{bits: 16, mtu: 1300}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.options.table = true
			r := newRig(t, test.options)
			r.listen(test.multipath)
			tagger, before, w := newTagger(r), r.rejects(), r.watch()
			for i := range 10 {
				port, vip, tag := firstPort+i, r.vips[i%2], uint16(1+i*6)
				tagger.want(port, vip, tag)
				conn := r.dialFrom(port, vip)
				progtest.Check(t, fetch(conn, 10))
				w.await(r, port, vip, tag)
				progtest.Check(t, fetch(conn, 1<<20))
				rewritten := tagger.rewritten(port, vip)
				progtest.Check(t, fetch(conn, 100000))
				if again := tagger.rewritten(port, vip); again != rewritten || rewritten == 0 {
					t.Errorf("connection %d: %d packets were rewritten, then %d more", i, rewritten, again-rewritten)
				}
				conn.Close()
			}
			r.verify(w, before)
			r.expectRestored(test.name)
		})
	}
}

// Load balancers come and go, each with an index of its own, and keys rotate, in the midst of bulk transfers.
func TestTagsAndKeysChangeInTheMidstOfTransfers(t *testing.T) {
	r := newRig(t, rigOptions{table: true})
	r.listen(false)
	r.fleet.Keys.Cookie[2] = [16]byte{9, 9, 9}
	tagger, before, w := newTagger(r), r.rejects(), r.watch()
	var running atomic.Int32
	running.Store(4)
	transfer := func(conn net.Conn) {
		defer running.Add(-1)
		defer conn.Close()
		for range 60 {
			if err := fetch(conn, 1<<20); err != nil {
				t.Error(err)
				return
			}
		}
	}
	var conns []net.Conn
	for i := range 4 {
		tagger.want(firstPort+i, r.vips[i%2], 1)
		conns = append(conns, r.dialFrom(firstPort+i, r.vips[i%2]))
	}
	for _, conn := range conns {
		go transfer(conn)
	}
	changes := 0
	for ; running.Load() == 4; changes++ {
		i, tag, enough := changes*3%4, uint16(1+changes*13%63), uint64(1+changes%6)
		port, vip := firstPort+i, r.vips[i%2]
		tagger.want(port, vip, tag)
		if changes%8 == 0 {
			r.fleet.Keys.Current = 3 - r.fleet.Keys.Current
			r.publish()
		}
		r.await("packets with the tag", func() bool {
			return tagger.rewritten(port, vip) >= enough || w.tag(port, vip) == tag || running.Load() < 4
		})
	}
	r.await("the transfers", func() bool { return running.Load() == 0 })
	t.Logf("%d changes", changes)
	r.verify(w, before)
	r.expectRestored("transfers")
}
