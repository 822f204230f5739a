package lb

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// choosing is a service with dispatch choices, and nine servers.
func choosing(vip netip.Addr, ipv6 bool, affinity model.Affinity, columns, depth uint8) model.Service {
	return serviceOf("web", vip, func(s *model.Service) {
		withServers(ipv6, 1, 2, 3, 4, 5, 6, 7, 8, 9)(s)
		s.Dispatch, s.Affinity, s.Forward = model.DispatchChoices, affinity, model.ForwardGUE
		s.Choices = model.Choices{Candidates: columns, History: depth}
	})
}

// any packet that a client, or somebody who pretends to be one, may send.
func (f flow) anySegment(w *world, n int) []byte {
	switch n % 9 {
	case 0:
		return f.tcp(syn, synOptions(), nil)
	case 1:
		return f.tcp(syn, nil, nil)
	case 2:
		return f.tcp(ack, nil, []byte("no timestamp"))
	case 3:
		return f.tcp(rst, nil, nil)
	case 4:
		return f.tcp(ack, timestamps(1, 0), nil)
	case 5:
		return f.tcp(ack, []byte{8, 3, 1, 1}, nil) // cannot be read
	case 6:
		return f.tcp(ack, timestamps(1, w.cookieFor("web", f, uint16(n%11), 1)), []byte("x"))
	}
	return f.tcp(fin|ack, timestamps(1, uint32(n)*2654435761), nil) // any column, or a forged cookie
}

// Servers come, go, drain, and cannot be reached; all packets go where the reference says, byte by byte.
func TestPacketsGoToTheCandidatesAndTheirHistory(t *testing.T) {
	random := seeded(t)
	for _, family := range families {
		for _, affinity := range []model.Affinity{model.AffinityCookie, model.AffinityHistory} {
			for columns := uint8(2); columns <= model.MaxCandidates; columns++ {
				depth := uint8(1 + random.IntN(model.MaxHistory))
				forward := model.ForwardGUE
				if family.server && random.IntN(2) == 0 {
					forward = model.ForwardSRv6
				}
				t.Run(fmt.Sprintf("%s/ipv6=%t/%s/%s/%dx%d", family.vip, family.server, forward, affinity, columns, depth), func(t *testing.T) {
					chosen := choosing(family.vip, family.server, affinity, columns, depth)
					chosen.Forward = forward
					w := newWorld(t, chosen)
					stops, verdicts := map[int]int{}, map[lbVerdict]int{}
					for range 12 {
						w.update(func(want *plan.Want) {
							s := service(want, "web")
							s.Servers[random.IntN(9)].State = model.ServerState(random.IntN(2))
							address := s.Servers[random.IntN(9)].Address
							path := want.Paths[address]
							if path.Ifindex = 0; random.IntN(2) == 0 {
								path.Ifindex = testIfindex
							}
							want.Paths[address] = path
						})
						for n := range 90 {
							f := flowTo(family.vip, 443, random.IntN(500))
							_, want := w.check(f.frame(f.anySegment(w, n)))
							stops[len(want.stops)]++
							verdicts[want.verdict]++
						}
					}
					for _, verdict := range []lbVerdict{lbVerdictFORWARDED_NEW, lbVerdictFORWARDED_NO_TIMESTAMP, lbVerdictFORWARDED_RESET,
						lbVerdictFORWARDED_NO_ECHO, lbVerdictFORWARDED_BAD_OPTIONS} {
						if verdicts[verdict] == 0 {
							t.Errorf("verdicts %v: none is %d", verdicts, verdict)
						}
					}
					if (affinity == model.AffinityHistory) != (verdicts[lbVerdictFORWARDED_BY_HISTORY] > 0) || stops[int(columns)-1] == 0 {
						t.Errorf("verdicts %v, stops %v", verdicts, stops)
					}
				})
			}
		}
	}
}

// The place of an address among the stops says which column it is, also where servers are missing or of another family: such a place repeats the
// address before, and the packet begins at the first server that can be reached.
func TestEveryCandidateHasItsPlace(t *testing.T) {
	w := newWorld(t, choosing(vip4, false, model.AffinityHistory, 4, 1))
	w.update(func(want *plan.Want) {
		s := service(want, "web")
		s.Servers[1].Address, s.Servers[4].Address = serverOf(2, true).Address, serverOf(5, true).Address
		for _, id := range []uint16{3, 6} {
			path := want.Paths[serverOf(id, false).Address]
			path.Ifindex = 0
			want.Paths[serverOf(id, false).Address] = path
		}
	})
	next := map[byte]int{}
	for n := range 200 {
		f := flowTo(vip4, 443, n)
		if got, _ := w.checkVerdict(f.frame(f.tcp(syn, synOptions(), nil)), lbVerdictFORWARDED_NEW); got.frame[12] == 8 {
			next[got.frame[14+20+8+4+1]]++
		}
	}
	if next[0] == 0 || next[1] == 0 || next[2] == 0 {
		t.Errorf("the first that could be reached: %v", next)
	}
}

// The number of candidates may change, and another policy may come: what is open goes on in the columns that are left.
func TestColumnsComeAndGo(t *testing.T) {
	w := newWorld(t, choosing(vip4, false, model.AffinityCookie, 3, 3))
	for _, change := range []func(s *plan.Service){
		func(s *plan.Service) { s.Choices.Candidates = 2 },
		func(s *plan.Service) { s.Dispatch = model.DispatchRR },
		func(s *plan.Service) { s.Servers[3].State = model.StateDraining },
		func(s *plan.Service) { s.Dispatch, s.Choices.Candidates = model.DispatchChoices, 4 },
		func(s *plan.Service) { s.TableSlots = 509 },
		func(s *plan.Service) { s.Servers = s.Servers[:7] },
	} {
		w.update(func(want *plan.Want) { change(service(want, "web")) })
		for n := range 200 {
			f := flowTo(vip4, 80, n)
			w.check(f.frame(f.anySegment(w, n)))
		}
	}
}
