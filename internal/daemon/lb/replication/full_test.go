package replication

import (
	"math/rand/v2"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/replicas"
)

// fill puts in entries until none has room, and returns the table.
func (h *host) fill() *replicas.Table {
	h.Helper()
	entries, _ := h.path.ReplicaTables()
	random := rand.New(rand.NewPCG(1, 2))
	for inserted, refused := 0, 0; refused < 20000; {
		if _, ok, err := entries.Insert(replicas.Entry{Key: random.Uint64() | 2, Owner: 1}); err != nil {
			h.Fatal(err)
		} else if refused++; ok {
			refused = 0
			inserted++
		}
		if room := len(entries.Buckets) * len(entries.Buckets[0].Slot); inserted > room {
			h.Fatalf("a table with room for %d entries took %d: it evicts", room, inserted)
		}
	}
	return entries
}

// Full is the head of the chain, or the tail. What is known of a connection holds, though it cannot be written down again.
//
// Promise: Replicated connections are kept when a table of their chain is full.
func TestAFullTableLeavesConnectionsWhereTheyAre(t *testing.T) {
	for place, name := range []string{"head", "tail"} {
		t.Run(name, func(t *testing.T) {
			hosts := newRing(t, 4, 2)
			view := viewOf(1, 2, 1, 2, 3, 4)
			var others []connection
			reach := func(c connection, flags byte) uint16 {
				t.Helper()
				server := uint16(0)
				for _, id := range []uint16{1, 2, 3, 4} {
					one, _ := deliverAll(hosts, hosts[id].run(c.frame(flags)))
					if server == 0 {
						server = one
					}
					if one == 0 || one != server {
						t.Fatalf("by load balancer %d to server %d, before to %d", id, one, server)
					}
				}
				return server
			}
			was := map[connection]uint16{}
			full := uint16(2)
			for n := range 400 {
				c := anyConnection(n)
				if hosts[1].chainOf(c, view)[place] != full {
					continue
				}
				if others = append(others, c); len(others)%2 == 0 {
					was[c] = reach(c, syn)
				}
			}
			entries := hosts[full].fill()
			if place == 0 { // as one that has just come
				emptied(t, entries)
				hosts[full].fill()
			}
			for _, h := range hosts {
				h.path.SetReplicaPeriod(h.path.ReplicaPeriod() + 1)
			}
			for _, c := range others {
				if _, known := was[c]; place == 1 && !known {
					was[c] = reach(c, syn) // the head has room
				}
			}
			for range 2 {
				for c, before := range was {
					if server := reach(c, ack); server != before {
						t.Errorf("a connection of server %d goes to server %d", before, server)
					}
				}
				emptied(t, entries) // then there is room
			}
			if len(was) < 5 || hosts[full].verdicts()["forwarded_table_full"] == 0 {
				t.Errorf("%d connections; %v", len(was), hosts[full].verdicts())
			}
		})
	}
}

func TestAFullTableTakesNothingAndLosesNothing(t *testing.T) {
	hosts := newRing(t, 2, 1)
	head := hosts[2]
	entries := head.fill()
	counted := head.verdicts()
	before, view := entries.Count(), viewOf(1, 1, 1, 2)
	servers := map[uint16]bool{}
	for n := range 3000 {
		c := anyConnection(n)
		if head.chainOf(c, view)[0] != 2 {
			continue
		}
		one, _ := deliverAll(hosts, hosts[1].run(c.frame(syn)))
		two, _ := deliverAll(hosts, hosts[1].run(c.frame(ack)))
		if one == 0 || one != two {
			t.Fatalf("connection %d: a full table sends to server %d, then to %d", n, one, two)
		}
		servers[one] = true
	}
	if after := entries.Count(); after-before > 20 || len(servers) < 5 {
		t.Errorf("%d entries, then %d; %d servers", before, after, len(servers))
	}
	now := head.verdicts()
	if now["dropped_table_full"] != counted["dropped_table_full"] || now["forwarded_table_full"] == counted["forwarded_table_full"] {
		t.Errorf("%v", now)
	}
}
