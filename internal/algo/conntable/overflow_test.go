package conntable

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// anyFlows returns the partition of one flow after the other: of one client behind each address.
func anyFlows(random *rand.Rand, partitions uint32) func() uint32 {
	k0, k1, flow := random.Uint64(), random.Uint64(), uint32(0)
	return func() uint32 {
		flow++
		client := netip.AddrFrom4([4]byte{100, byte(flow >> 16), byte(flow >> 8), byte(flow)})
		return PartitionOf(Hash(k0, k1, netip.AddrPortFrom(client, 40000), 443), partitions)
	}
}

// ends are when connections end, with their partitions; a heap.
type ends []struct {
	at        float64
	partition uint32
}

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].at < e[j].at }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(ends)...) }
func (e *ends) Pop() any          { last := (*e)[len(*e)-1]; *e = (*e)[:len(*e)-1]; return last }

// Flows that come at random, of equal or of very unequal lengths, and give up where their partition is full.
func TestPartitionsFillAsErlangTells(t *testing.T) {
	random := seeded(t)
	const indexBits, partitions, load, flows = 4, 64, 11.0, 1 << 17
	for name, length := range map[string]func() float64{
		"equal": func() float64 { return 1 },
		"unequal": func() float64 { // 1 in the mean, too
			if random.IntN(11) == 0 {
				return 10
			}
			return 0.1
		},
	} {
		next, counts := anyFlows(random, partitions), make([]int, partitions)
		now, blocked, seen, open := 0.0, 0, 0, ends{}
		for i := range flows {
			now += random.ExpFloat64() / (load * partitions)
			for len(open) > 0 && open[0].at <= now {
				counts[open[0].partition]--
				heap.Pop(&open)
			}
			partition := next()
			full := counts[partition] == 1<<indexBits-1
			if i > flows/4 { // the table has filled
				seen++
				if full {
					blocked++
				}
			}
			if !full {
				counts[partition]++
				heap.Push(&open, ends{{now + length(), partition}})
			}
		}
		got, want := float64(blocked)/float64(seen), overflow(1<<indexBits-1, load)
		if math.Abs(got-want) > 0.25*want { // 6 standard deviations of the unequal ones
			t.Errorf("%s lengths: %.4f found no entry, Erlang says %.4f", name, got, want)
		}
	}
}

// Connections that try again: those that a Poisson distribution puts above what a partition holds are without an entry.
func TestAsManyFlowsAreWithoutAnEntryAsChancePutsInFullPartitions(t *testing.T) {
	random := seeded(t)
	const indexBits, partitions, load, lines = 4, 1 << 16, 9, 1<<4 - 1
	next, counts := anyFlows(random, partitions), make([]int, partitions)
	for range load * partitions {
		counts[next()]++
	}
	without := 0
	for _, count := range counts {
		without += max(0, count-lines)
	}
	chance, want := math.Exp(-load), 0.0
	for i := 1.0; i < 100; i++ {
		chance *= load / i
		want += chance * max(0, i-lines) / load
	}
	if got := float64(without) / (load * partitions); math.Abs(got-want) > 0.2*want { // 6 standard deviations
		t.Errorf("%.5f of the flows are without, want %.5f", got, want)
	}
}
