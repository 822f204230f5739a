package server_test

import (
	"maps"
	"testing"
)

// A connection that carries a cookie looks to both kernels like one that does not: everything arrives, every timestamp
// on the wire is marked, and neither end doubts one.
func TestEveryPacketCarriesTheCookieAndNoKernelObjects(t *testing.T) {
	for _, test := range []struct {
		name      string
		options   rigOptions
		multipath bool
	}{
		{name: "default"},
		{name: "multipath listener", multipath: true},
		{name: "SYN cookies", options: rigOptions{sysctls: map[string]string{"net/ipv4/tcp_syncookies": "2"}}},
		{name: "SYN cookies and a multipath listener", options: rigOptions{sysctls: map[string]string{"net/ipv4/tcp_syncookies": "2"}}, multipath: true},
		{name: "timestamps without offset", options: rigOptions{sysctls: map[string]string{"net/ipv4/tcp_timestamps": "2"}}},
		{name: "8 bits", options: rigOptions{bits: 8}},
		{name: "16 bits", options: rigOptions{bits: 16}},
		{name: "small MTU", options: rigOptions{mtu: 1300}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, test.options)
			r.listen(test.multipath)
			before := r.rejects()
			w := r.watch()
			r.browse(20, 1, 100, 70000, 1<<20)
			w.verify(t)
			if after := r.rejects(); !maps.Equal(after, before) {
				t.Errorf("rejected timestamps: %v before, %v after", before, after)
			}
			r.expectRestored(test.name)
		})
	}
}

// expectRestored checks that nothing of ours was left as it is.
func (r *rig) expectRestored(name string) {
	r.t.Helper()
	for _, counter := range []string{
		"ingress_bad_cookie", "ingress_unmarked", "egress_unmarked_older_than_agent",
		"egress_unmarked_usec", "egress_unmarked_authenticated", "egress_no_timestamp",
	} {
		if n := r.count(counter); n != 0 {
			r.t.Errorf("%s: %d %s", name, n, counter)
		}
	}
	// A host that has forgotten a connection answers what comes late, a repeated ACK of TIME_WAIT for one, with RST, which carries no timestamp.
	if n, resets := r.count("ingress_no_timestamp"), r.netstat("OutRsts")["OutRsts"]; n > uint64(resets) {
		r.t.Errorf("%s: %d ingress_no_timestamp, %d resets", name, n, resets)
	}
	handshakes := r.count("ingress_restored_request") + r.count("ingress_restored_syn_cookie")
	r.t.Logf("handshakes %d, echoes %d, TIME_WAIT %d, marked %d", handshakes, r.count("ingress_restored"),
		r.count("ingress_restored_time_wait"), r.count("egress_marked"))
	if handshakes == 0 || r.count("ingress_restored") == 0 {
		r.t.Error("nothing was restored")
	}
}
