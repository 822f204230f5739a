package lb

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func TestACookieLeadsToItsServerWhateverItsWidth(t *testing.T) {
	eachPath(t, func(t *testing.T, path string) {
		for bits := uint8(model.MinCookieBits); bits <= model.MaxCookieBits; bits++ {
			t.Run(fmt.Sprint(bits), func(t *testing.T) {
				largest := uint16(1)<<(bits-1) - 1
				for _, vip := range []netip.Addr{vip4, vip6} {
					w := newWorld(t, serviceOf("web", vip, func(s *model.Service) {
						s.CookieBits = bits
						withServers(false, 1, 2, largest-1, largest)(s)
					}))
					w.path = path
					for n, id := range []uint16{1, 2, largest - 1, largest} {
						f := flowTo(vip, 443, n)
						got, want := w.checkVerdict(f.carrying(w.cookieFor("web", f, id, 1)), lbVerdictFORWARDED_BY_COOKIE)
						if want.serverOf(got.frame) != id {
							t.Fatalf("went to server %d, want %d", want.serverOf(got.frame), id)
						}
					}
				}
			})
		}
	})
}

// Promise: A forged, stale or foreign cookie causes at worst an RST to its sender, and is counted.
// Also held by TestServicesDoNotAcceptEachOthersCookies.
func TestWhatIsNoCookieOfOursFallsToPlacement(t *testing.T) {
	eachPath(t, func(t *testing.T, path string) {
		for _, vip := range []netip.Addr{vip4, vip6} {
			w := newWorld(t, serviceOf("web", vip, nil))
			w.path = path
			s := service(&w.want, "web")
			f, other := flowTo(vip, 443, 1), flowTo(vip, 443, 2)
			for name, echo := range map[string]uint32{
				"of another flow":      w.cookieFor("web", other, 1, 1),
				"of a foreign key":     cookieUnder([16]byte{9}, s, f, 1, 1),
				"of an id nobody has":  w.cookieFor("web", f, 4, 1),
				"of the largest id":    w.cookieFor("web", f, s.MaxID(), 1),
				"of id 0":              w.cookieFor("web", f, 0, 1),
				"of an unknown epoch":  cookieUnder(w.want.Keys.Cookie[1], s, f, 1, 2),
				"with one bit flipped": w.cookieFor("web", f, 1, 1) ^ 1<<9,
			} {
				t.Run(name, func(t *testing.T) {
					w.TB = t
					w.checkVerdict(f.carrying(echo), lbVerdictFORWARDED_BAD_COOKIE)
				})
			}
			w.TB = t
			w.checkVerdict(f.carrying(0), lbVerdictFORWARDED_NO_ECHO)
		}
	})
}

// Promise: Connections are kept when the key is rotated, also after their server was removed, because `ctl key
// rotate` waits for silent connections.
// Also held by TestConnectionsThatAServerLeavesBehindFollowRotations and TestConnectionsSurviveChurn.
func TestKeysRotateWithoutALostConnection(t *testing.T) {
	eachPath(t, func(t *testing.T, path string) {
		w := newWorld(t, serviceOf("web", vip4, nil))
		w.path = path
		f := flowTo(vip4, 443, 1)
		old := w.cookieFor("web", f, 2, 1)
		w.checkVerdict(f.carrying(old), lbVerdictFORWARDED_BY_COOKIE)

		w.update(func(want *plan.Want) { want.Keys = testKeys(1, 2) })
		w.checkVerdict(f.carrying(old), lbVerdictFORWARDED_BY_COOKIE)
		w.checkVerdict(f.carrying(w.cookieFor("web", f, 3, 2)), lbVerdictFORWARDED_BY_COOKIE)

		w.update(func(want *plan.Want) { want.Keys = testKeys(2) })
		w.checkVerdict(f.carrying(w.cookieFor("web", f, 3, 2)), lbVerdictFORWARDED_BY_COOKIE)
		w.checkVerdict(f.carrying(old), lbVerdictFORWARDED_BAD_COOKIE)

		w.update(func(want *plan.Want) { want.Keys = testKeys(2, 3) })
		w.checkVerdict(f.carrying(w.cookieFor("web", f, 3, 2)), lbVerdictFORWARDED_BY_COOKIE)
		w.checkVerdict(f.carrying(old), lbVerdictFORWARDED_BAD_COOKIE) // epoch 1 and 3 have one parity
	})
}

// Promise: Connections with cookies stay on a removed server that still works, at load balancers that knew it,
// until it has been silent for 24 h (`--linger`).
// Also held by TestServiceThatLeavesKeepsItsConnections and TestConnectionsSurviveChurn.
func TestRemovedServersKeepTheirConnections(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	f := flowTo(vip4, 443, 1)
	carrying := f.carrying(w.cookieFor("web", f, 2, 1))
	w.update(func(want *plan.Want) {
		s := service(want, "web")
		s.Removed = []model.Server{s.Servers[1]}
		s.Servers = append(s.Servers[:1:1], s.Servers[2:]...)
	})
	w.checkVerdict(carrying, lbVerdictFORWARDED_BY_COOKIE)
	w.update(func(want *plan.Want) { service(want, "web").Removed = nil })
	w.checkVerdict(carrying, lbVerdictFORWARDED_BAD_COOKIE)
}

// goldenVector is what this test needs of a line of test/golden/cookie.json.
type goldenVector struct {
	Key         string
	VIP         netip.Addr
	Protocol    model.Protocol
	Client      netip.AddrPort
	ServicePort uint16 `json:"service_port"`
	CookieBits  uint8  `json:"cookie_bits"`
	Epoch       uint32
	ID          uint16
	TableSlots  uint32 `json:"table_slots"`
	Cookie      uint16
	Slot        uint32
}

func goldenVectors(t *testing.T) (vectors []goldenVector) {
	raw, err := os.ReadFile("../../../test/golden/cookie.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &vectors); err != nil {
		t.Fatal(err)
	}
	return vectors
}

// service is one whose slot of the vector alone belongs to the vector's server, when owned is set.
func (v *goldenVector) service() model.Service {
	return serviceOf("golden", v.VIP, func(s *model.Service) {
		s.Protocol, s.Ports, s.CookieBits, s.TableSlots = v.Protocol, []uint16{v.ServicePort}, v.CookieBits, v.TableSlots
		withServers(false, v.ID)(s)
		if v.ID < s.MaxID() {
			s.Servers = append(s.Servers, serverOf(v.ID+1, false))
		} else {
			s.Servers = append(s.Servers, serverOf(v.ID-1, false))
		}
	})
}

func TestGoldenCookiesReachTheirServers(t *testing.T) {
	w := newWorld(t)
	for _, v := range goldenVectors(t) {
		if v.Protocol != model.ProtocolTCP {
			continue
		}
		w.update(func(want *plan.Want) {
			want.Keys.Current, want.Keys.Cookie = v.Epoch, map[uint32][16]byte{v.Epoch: v.key(t)}
			want.Services = []plan.Service{{Service: v.service()}}
		})
		f := flow{v.Client, netip.AddrPortFrom(v.VIP, v.ServicePort)}
		// The cookie comes from the file alone; the clock above it is no part of it.
		got, want := w.checkVerdict(f.carrying(0xabcd<<v.CookieBits|uint32(v.Cookie)), lbVerdictFORWARDED_BY_COOKIE)
		if to := want.serverOf(got.frame); to != v.ID {
			t.Fatalf("%+v went to server %d", v, to)
		}
	}
}

func TestGoldenFlowsFallIntoTheirSlots(t *testing.T) {
	w := newWorld(t)
	for _, v := range goldenVectors(t) {
		delete(w.slots, "golden")
		w.update(func(want *plan.Want) {
			want.Keys = testKeys(1)
			want.Keys.Placement = v.key(t)
			want.Services = []plan.Service{{Service: v.service()}}
		})
		f := flow{v.Client, netip.AddrPortFrom(v.VIP, v.ServicePort)}
		packet := ipPacket(f.client.Addr(), v.VIP, byte(v.Protocol), f.udp([]byte("x")))
		if v.Protocol == model.ProtocolTCP {
			packet = ipPacket(f.client.Addr(), v.VIP, byte(v.Protocol), f.tcp(syn, nil, nil))
		}
		got, want := w.check(ethernet(0, packet))
		owner := w.slots["golden"][v.Slot].Owners[0]
		if to := want.serverOf(got.frame); to != owner {
			t.Fatalf("%+v went to server %d, its slot belongs to %d", v, to, owner)
		}
	}
}

func (v *goldenVector) key(t *testing.T) (key [16]byte) {
	if n, err := hex.Decode(key[:], []byte(v.Key)); err != nil || n != 16 {
		t.Fatalf("key %q: %v", v.Key, err)
	}
	return key
}

func TestServicesDoNotAcceptEachOthersCookies(t *testing.T) {
	other := netip.MustParseAddr("198.51.100.11")
	w := newWorld(t, serviceOf("a", vip4, nil), serviceOf("b", other, withServers(false, 11, 12, 13)))
	accepted := 0
	for n := range 200 {
		to := flow{flowTo(vip4, 80, n).client, netip.AddrPortFrom(other, 80)}
		if got, _ := w.check(to.carrying(w.cookieFor("a", flowTo(vip4, 80, n), 1, 1))); got.verdict == lbVerdictFORWARDED_BY_COOKIE {
			accepted++
		}
	}
	if accepted > 2 { // chance: 3 ids of 8191
		t.Errorf("%d of 200 cookies of another service were accepted", accepted)
	}
}
