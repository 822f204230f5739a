package lb

import (
	"fmt"
	"maps"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// withJoins is a change of a service to one with mptcp.
func withJoins(s *model.Service) { s.MPTCP = model.MPTCP{FirstPort: 40000, Ports: 200} }

// joinTo is a flow from client n to the port of a server, in the current epoch.
func (w *world) joinTo(name string, n int, id uint16) flow {
	return w.joinIn(w.want.Keys.Current, name, n, id)
}

func (w *world) joinIn(epoch uint32, name string, n int, id uint16) flow {
	s := service(&w.want, name)
	return flowTo(s.VIP, plan.JoinPorts(&w.want.Keys, &s.Service, epoch)(id), n)
}

// A subflow's packets go to the server that its port names, whatever they carry, as long as the server is known; its SYN is no new connection.
func TestSubflowsReachTheServerThatTheirPortNames(t *testing.T) {
	for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE, model.ForwardSRv6} {
		for _, dispatch := range []model.Dispatch{model.DispatchRR, model.DispatchMaglev} {
			t.Run(fmt.Sprint(forward, " ", dispatch), func(t *testing.T) {
				w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) {
					withJoins(s)
					s.Forward, s.Dispatch = forward, dispatch
					withServers(forward == model.ForwardSRv6, 1, 2, 3)(s)
				}))
				check := func() {
					t.Helper()
					for n := range 12 {
						server := uint16(n%3 + 1)
						f := w.joinTo("web", n, server)
						cookie := w.cookieFor("web", f, server%3+1, 1) // of another server: the port counts
						for _, segment := range [][]byte{f.tcp(syn, timestamps(1, 0), nil), f.tcp(ack, nil, nil), f.tcp(ack, timestamps(1, cookie), []byte("data")), f.tcp(rst, nil, nil)} {
							got, want := w.checkVerdict(f.frame(segment), lbVerdictFORWARDED_BY_PORT)
							if to := want.serverOf(got.frame); to != server {
								t.Fatalf("a packet to the port of server %d went to %d", server, to)
							}
						}
						got, want := w.checkVerdict(pathError(f, 3, 4, 1400, f.answer(1), 28), lbVerdictFORWARDED_ICMP_BY_COOKIE)
						if to := want.serverOf(got.frame); to != server {
							t.Fatalf("an error about the port of server %d went to %d", server, to)
						}
						segment := f.tcp(ack, timestamps(1, 0), make([]byte, 96))
						first, later := fragmentOf(f.client.Addr(), vip4, 6, uint32(n), 0, true, segment[:64]), fragmentOf(f.client.Addr(), vip4, 6, uint32(n), 64, false, segment[64:])
						w.checkVerdict(first, lbVerdictFORWARDED_BY_PORT)
						if got, want = w.checkVerdict(later, lbVerdictFORWARDED_FRAGMENT); want.serverOf(got.frame) != server {
							t.Fatal("the fragment went astray")
						}
					}
				}
				check()
				w.update(func(want *plan.Want) { // draining, unhealthy, removed: they keep what they have
					s := service(want, "web")
					s.Servers[0].State = model.StateDraining
					s.Down = map[uint16]bool{2: true}
					s.Removed, s.Servers = append(s.Removed, s.Servers[2]), s.Servers[:2]
				})
				check()
			})
		}
	}
}

// While two keys are known, the ports of both epochs lead to their servers; those of an epoch that is not known any more, or not yet, lead nowhere,
// also if somebody has written them down.
func TestSubflowsJoinAtThePortsOfKnownEpochs(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withJoins))
	first, second := w.want.Keys.Current, w.want.Keys.Current+1
	key := func(epoch uint32, known bool) func(*plan.Want) {
		return func(want *plan.Want) {
			if want.Keys.Cookie = maps.Clone(want.Keys.Cookie); known {
				want.Keys.Cookie[epoch] = [16]byte{byte(epoch), 77}
			} else {
				delete(want.Keys.Cookie, epoch)
			}
		}
	}
	if len(w.want.Keys.Cookie) > 1 {
		w.update(key(second, false))
	}
	flows := map[uint32][]flow{}
	leads := func(epoch uint32, known bool) {
		t.Helper()
		for i, f := range flows[epoch] {
			if !known {
				w.checkVerdict(f.frame(f.tcp(syn, timestamps(1, 0), nil)), lbVerdictPASSED_NO_SERVICE)
				w.checkVerdict(f.carrying(0), lbVerdictPASSED_NO_SERVICE)
				continue
			}
			if got, want := w.checkVerdict(f.carrying(0), lbVerdictFORWARDED_BY_PORT); want.serverOf(got.frame) != uint16(i+1) {
				t.Errorf("the port of server %d in epoch %d leads to another", i+1, epoch)
			}
		}
	}
	for _, epoch := range []uint32{first, second} {
		w.update(key(epoch, true))
		for id := range uint16(2) {
			flows[epoch] = append(flows[epoch], w.joinIn(epoch, "web", int(epoch)*10+int(id), id+1))
		}
		leads(epoch, true)
	}
	leads(first, true)
	w.update(func(want *plan.Want) { want.Keys.Current = second })
	leads(first, true)
	leads(second, true)
	w.update(key(first, false))
	leads(first, false)
	leads(second, true)
}

// Ports that no server has are no service's; a port that was the service's and is a server's now, and the other way round, means what it means today.
//
// Promise: Packets to an MPTCP port without a server go to the host, as for other ports without a service.
func TestPortsChangeTheirMeaningWithTheService(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withJoins))
	f := w.joinTo("web", 1, 2)
	w.checkVerdict(w.joinTo("web", 1, 90).carrying(0), lbVerdictPASSED_NO_SERVICE)
	w.checkVerdict(f.carrying(0), lbVerdictFORWARDED_BY_PORT)
	for range 2 {
		w.update(func(want *plan.Want) {
			s := service(want, "web")
			s.MPTCP, s.Ports = model.MPTCP{}, append(s.Ports, f.service.Port())
		})
		w.checkVerdict(f.carrying(0), lbVerdictFORWARDED_NO_ECHO)
		w.update(func(want *plan.Want) {
			s := service(want, "web")
			withJoins(&s.Service)
			s.Ports = s.Ports[:len(s.Ports)-1]
		})
		w.checkVerdict(f.carrying(0), lbVerdictFORWARDED_BY_PORT)
	}
	w.update(func(want *plan.Want) { service(want, "web").MPTCP = model.MPTCP{} })
	w.checkVerdict(f.carrying(0), lbVerdictPASSED_NO_SERVICE)
}
