package bench

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loading BPF programs needs root")
	}
}

func TestEveryCellIsMeasuredAndEveryPacketAccountedFor(t *testing.T) {
	needRoot(t)
	const rounds, repeat = 2, 500
	flows := []uint32{1, 1_000_000}
	var progress int
	cells, err := Run(context.Background(), Options{Rounds: rounds, Repeat: repeat, Flows: flows, Peers: []string{compilePeer(t)},
		Progress: func(int, int) { progress++ }})
	if err != nil {
		t.Fatal(err)
	}
	if progress != rounds {
		t.Errorf("progress was told %d times, want %d", progress, rounds)
	}
	programs := []string{"empty", "parse-swap", "minimal-ipip", "hash", "cookie", "cookie-ipv6", "cookie-gue", "syn-rr", "syn-p2c", "syn-least", "syn-awrr", "syn-awfd",
		"syn-choices", "syn-choices-srv6", "history", "quic-single-pass", "quic-four-pass", "quic-plain", "quic-initial",
		"quic-initial-known", "udp-hash", "cookie-l2", "session-syn", "session-hello", "session-hello-new", "session-cookie", "allow-syn", "allow-cookie", "source-limit-syn",
		"source-limit-cookie", "syn-proxy-syn", "syn-proxy-first", "syn-proxy-cookie", "no-timestamp", "replica-hit", "hash-stop", "session-ack", "allow-refused",
		"through-in", "through-out", "through-out-unmarked", "options-8-first", "options-8-shifted", "options-11-first", "options-11-behind-sack",
		"options-13-first", "options-13-behind-sack", "options-15-first", "options-15-behind-sack", "options-15-behind-nops", "peer"}
	if len(cells) != len(programs)*len(flows) {
		t.Fatalf("%d cells, want %d", len(cells), len(programs)*len(flows))
	}
	for _, program := range programs {
		for _, n := range flows {
			c, ok := Find(cells, program, n)
			if !ok || c.MinNS > c.MedianNS || c.MedianNS > c.MaxNS || c.Verdict == "" || c.VerdictCount != rounds*repeat {
				t.Errorf("the cell of %s at %d flows is %+v", program, n, c)
			}
		}
	}
}

// A program that does something else than it is said to must not get a time.
func TestWrongVerdictIsRefused(t *testing.T) {
	needRoot(t)
	r, err := openRig(loopback)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	for _, test := range []struct {
		name   string
		spoil  func(s *subject)
		reason string
	}{
		{"frames for nobody", func(s *subject) { s.cell.Frame[33] = 99 }, "another length than expected"},
		{"forged cookies", func(s *subject) { s.cell.CookieKey.K0++ }, "packets were"},
		{"another program", func(s *subject) { s.program = r.programs.MinimalIPIP() }, "packets were"},
		{"another server", func(s *subject) { s.check = checkFirst; s.cell.IDs = 2 }, "the packet goes to"},
	} {
		subjects := r.subjects()
		for i := range subjects {
			if subjects[i].name != "cookie" {
				continue
			}
			test.spoil(&subjects[i])
			m := &measurement{subject: &subjects[i], flows: 2}
			var errs error
			for seed := range uint64(20) { // the last frame is checked byte by byte: sooner or later it is one of the second server
				errs = errors.Join(errs, r.sample(m, 100, seed*0x9e3779b97f4a7c15+1))
			}
			if errs == nil || !strings.Contains(errs.Error(), test.reason) {
				t.Errorf("%s: %v, want %q", test.name, errs, test.reason)
			}
		}
	}
}

// What measures a drop, a redirect or a stop must see just that.
func TestOtherEndsAreRefused(t *testing.T) {
	needRoot(t)
	r, err := openRig(loopback)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	space, device, err := routeToClients()
	if err != nil {
		t.Fatal(err)
	}
	defer space.Close()
	spoil := map[string]func(s *subject){
		"hash-stop": func(s *subject) {
			s.place, s.cell.Frame = r.places[hashVIP.String()], plainCell(hashVIP, segmentACK).Frame
		},
		"session-ack": func(s *subject) { s.action = xdpTX },
		"through-in":  func(s *subject) { s.prepare = nil }, // no clock
		"through-out": func(s *subject) { s.cell = answerCell(nil) },
	}
	tried := 0
	for _, s := range r.inMemory(device) {
		if spoil[s.name] == nil {
			continue
		}
		spoil[s.name](&s)
		tried++
		err := space.Do(func() error { return r.sample(&measurement{subject: &s, flows: 10}, 100, 1) })
		if err == nil {
			t.Errorf("%s was measured all the same", s.name)
		}
	}
	if tried != len(spoil) {
		t.Errorf("%d of %d subjects are there", tried, len(spoil))
	}
}

func TestFlowsAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for flow := range uint32(100_000) {
		seen[wrapper.Client(flow).String()] = true
	}
	if len(seen) != 100_000 {
		t.Errorf("100000 flows have %d addresses", len(seen))
	}
}

func checkFirst(output []byte, s sent) error {
	return checkServer(output, s, serverAddress(1), identification)
}
