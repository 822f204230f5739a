package datapath_test

import (
	"testing"
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
		{name: "multipath listener", multipath: true},
		{name: "SYN cookies", options: rigOptions{sysctls: map[string]string{"net/ipv4/tcp_syncookies": "2"}}},
		{name: "16 bits, small MTU", options: rigOptions{bits: 16, mtu: 1300}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.options.table = true
			r := newRig(t, test.options)
			r.listen(test.multipath)
			tagger, before, w := newTagger(r), r.rejects(), r.watch()
			for i := range 10 {
				port, vip, tag := 20000+i, r.vips[i%2], uint16(1+i*6)
				tagger.want(port, vip, tag)
				conn := r.dialFrom(port, vip)
				check(t, fetch(conn, 10))
				w.await(r, port, vip, tag)
				check(t, fetch(conn, 1<<20))
				rewritten := tagger.rewritten(port, vip)
				check(t, fetch(conn, 100000))
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
