package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/linux/lb"
)

// Loading programs takes longer than all the rest: the tests share them.
func TestReplicas(t *testing.T) {
	needRoot(t)
	r, err := openReplicaRig()
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	t.Run("every cell is measured and every packet accounted for", func(t *testing.T) { testEveryReplicaCell(t, r) })
	t.Run("a way that is not the chain's is refused", func(t *testing.T) { testWrongWay(t, r) })
	t.Run("time counts from when a packet is due", func(t *testing.T) { testDue(t, r) })
}

func testEveryReplicaCell(t *testing.T, r *replicaRig) {
	const rounds, connections = 2, 2000
	result, err := r.run(t.Context(), &ReplicaOptions{Rounds: rounds, Repeat: connections})
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Latency) != 1+latencyChains {
		t.Errorf("%+v", result.Latency)
	}
	for chain, l := range result.Latency {
		if l.Chain != chain || l.P50NS <= 0 || l.P50NS > l.P99NS || l.Packets == 0 || chain > 0 && (l.Hops != chain+2 || l.EachNS <= 0) {
			t.Errorf("%+v", l)
		}
	}
	if len(result.Loaded) != len(loadedLengths)*len(loads)*latencyChains {
		t.Errorf("%+v", result.Loaded)
	}
	for _, l := range result.Loaded {
		if l.P50NS <= 0 || l.P50NS > l.P99NS || l.P99NS > l.P999NS || l.First == 0 || l.First > rounds*minLatency || l.PerSecond <= 0 {
			t.Errorf("%+v", l)
		}
	}
	if len(result.Lengths) != len(lengths) {
		t.Errorf("%+v", result.Lengths)
	}
	for i, l := range result.Lengths {
		if l.Packets != lengths[i] || l.MinNS <= 0 || l.MinNS > l.MedianNS || l.Messages < 1 || l.Messages > loadLength+1 || l.Ratio <= 0 {
			t.Errorf("%+v", l)
		}
	}
	if len(result.Load) != maxNodes+maxNodes-1 {
		t.Errorf("%d rows of load", len(result.Load))
	}
	for _, l := range result.Load {
		if l.MinNS <= 0 || l.MinNS > l.MedianNS || l.MedianNS > l.MaxNS || l.Connections < rounds*connections || l.Messages > float64(l.Chain+1) || l.Ratio <= 0 {
			t.Errorf("%+v", l)
		}
		if (l.Messages == 0) != (l.Nodes == 1) {
			t.Errorf("%v messages between %d", l.Messages, l.Nodes)
		}
	}
	for _, m := range result.Memory {
		if m.BytesPerEntry < 30 || m.BytesPerEntry > 31 {
			t.Errorf("%+v", m)
		}
	}
	if len(result.Memory) != 2 {
		t.Errorf("%+v", result.Memory)
	}
}

// What goes another way than is measured must not get a time.
func testWrongWay(t *testing.T, r *replicaRig) {
	for _, test := range []struct {
		name   string
		spoil  func() error
		reason string
	}{
		{"without a ring", func() error { return r.nodes[0].lb.PublishView(&lb.ReplicaView{}) }, "packets came to servers"},
		{"another length", func() error { r.cell.Growth++; return nil }, "of another length than expected"},
		{"chains of another length", func() error { r.view.Chains[0] = nil; return nil }, "packets were"},
		{"another service", func() error { r.cell.Frame[33]++; return nil }, "packets came to servers"},
	} {
		for name, sample := range map[string]func() error{
			"load":           func() error { return r.sampleLoad(&replicaCell{chain: 2, nodes: 3, length: 1}, 1000) },
			"longer":         func() error { return r.sampleLoad(&replicaCell{chain: 2, nodes: 3, length: 10}, 1000) },
			"time amid load": func() error { return r.sampleLoaded(&replicaCell{chain: 2, nodes: 3, length: 10, load: 0.5}, 100) },
		} {
			cell := r.cell
			r.carried[10] = 10_000
			err := r.ring(3, 2)
			if err == nil {
				err = test.spoil()
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := sample(); err == nil || !strings.Contains(err.Error(), test.reason) {
				t.Errorf("%s, %s: %v", name, test.name, err)
			}
			r.cell = cell
		}
	}
}

// testDue has packets come faster than they can be handled, and then slower.
func testDue(t *testing.T, r *replicaRig) {
	if err := r.ring(4, 1); err != nil {
		t.Fatal(err)
	}
	const packets, part = 2000, 200
	send := func(mean time.Duration) []float64 {
		crossing, err := r.cross(r.elsewhere(packets, 4), wrapper.Pace{Ports: 4, Mean: mean})
		if err != nil {
			t.Fatal(err)
		}
		times, err := r.times(crossing.Sent, 1)
		if err != nil {
			t.Fatal(err)
		}
		return times
	}
	times := send(time.Nanosecond)
	if first, last := percentile(times[:part], 50), percentile(times[len(times)-part:], 50); last < 4*first {
		t.Errorf("all are due at once: it takes the first %.0f ns, and the last %.0f", first, last)
	}
	begin, mean := time.Now(), 20*time.Microsecond
	send(mean)
	if took := time.Since(begin); took < packets*mean*9/10 {
		t.Errorf("%d packets, due every %v, were sent within %v", packets, mean, took)
	}
}

func TestAllEntriesAreCopied(t *testing.T) {
	needRoot(t)
	for _, c := range replicaCopies() {
		if got, err := c.run(t.Context(), 20_000); err != nil || got.Entries != 20_000 || got.Seconds <= 0 || got.Common != c.Common || got.Shared != c.Shared {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
	}
}
