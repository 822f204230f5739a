package bench

import (
	"strings"
	"testing"
)

func TestEveryFrameCrossesAndIsAccountedFor(t *testing.T) {
	needRoot(t)
	const rounds, frames = 2, 500 // few, so that the kernel handles them all in this thread's time, also on a busy machine
	flows := []uint32{1_000_000}
	cells, err := RunVeth(t.Context(), Options{Rounds: rounds, Repeat: frames, Flows: flows})
	if err != nil {
		t.Fatal(err)
	}
	programs := []string{"empty", "parse-swap", "minimal-ipip", "hash", "cookie", "cookie-ipv6", "cookie-gue", "syn-rr", "syn-p2c", "syn-least", "syn-awrr", "syn-awfd",
		"syn-choices", "syn-choices-srv6", "history", "quic-single-pass", "quic-four-pass", "quic-plain", "quic-initial",
		"quic-initial-known", "udp-hash", "cookie-l2", "session-syn", "session-hello", "session-hello-new", "session-cookie",
		"allow-syn", "allow-cookie", "source-limit-syn", "source-limit-cookie", "syn-proxy-syn", "syn-proxy-first", "syn-proxy-cookie", "no-timestamp", "replica-hit"}
	if len(cells) != len(programs)*len(flows) {
		t.Fatalf("%d cells, want %d", len(cells), len(programs)*len(flows))
	}
	for i, c := range cells {
		if c.Program != programs[i%len(programs)] || c.Flows != flows[i/len(programs)] || c.Verdict == "" || c.VerdictCount < rounds*frames ||
			c.MinNS > c.MedianNS || c.MedianNS > c.MaxNS || c.MinNS <= 0 || c.MinRatio > c.Ratio || c.Ratio > c.MaxRatio || c.MinRatio <= 0 {
			t.Errorf("%+v", c)
		}
	}
}

func TestACrossingThatIsNotWhatItSaysIsRefused(t *testing.T) {
	needRoot(t)
	r, err := openVethRig()
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	for _, test := range []struct {
		name   string
		spoil  func(s *subject)
		reason string
	}{
		{"another MAC address", func(s *subject) { s.cell.Frame[5]++ }, "0 of 192 frames came back"},
		{"nobody's address", func(s *subject) { s.cell.Frame[33] = 99 }, "0 of 192 frames came back"},
		{"another length", func(s *subject) { s.cell.Growth++ }, "of another length than expected"},
		{"forged cookies", func(s *subject) { s.cell.CookieKey.K0++ }, "packets were"},
		{"another program", func(s *subject) { s.program = r.programs.MinimalIPIP() }, "packets were"},
	} {
		for _, s := range r.subjects() {
			if s.name != "cookie" {
				continue
			}
			test.spoil(&s)
			if _, err := r.cross(t.Context(), &s, 1000, 3000, 1); err == nil || !strings.Contains(err.Error(), test.reason) {
				t.Errorf("%s: %v", test.name, err)
			}
		}
	}
}
