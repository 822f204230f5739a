package lb

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// loopback is the device of test runs.
var loopback = &net.Interface{Index: testIfindex, Name: "lo", HardwareAddr: nodeMAC[:]}

// Every map that a program has is shared, copied, or a dry run's own; otherwise what packets write into it would be another's.
func TestEveryMapHasAPartInDryRuns(t *testing.T) {
	spec, err := loadLb()
	if err != nil {
		t.Fatal(err)
	}
	known := slices.Concat(dryShared, dryCopied, dryKeyed, dryWhole, dryUnread, dryOwn)
	if all := slices.Sorted(maps.Keys(spec.Maps)); !slices.Equal(all, slices.Sorted(slices.Values(known))) {
		t.Errorf("maps are %v\ndry runs know %v", all, slices.Sorted(slices.Values(known)))
	}
	if spec, err = drySpec(spec, dryPrograms); err != nil {
		t.Fatal(err)
	}
	const mostMaps = 64 // of a program (linux/bpf_verifier.h)
	for name, program := range spec.Programs {
		used := map[string]bool{}
		for _, i := range program.Instructions {
			if i.IsLoadFromMap() {
				used[i.Reference()] = true
			}
			if i.IsBuiltinCall() && (i.Constant == int64(asm.FnMapUpdateElem) || i.Constant == int64(asm.FnMapDeleteElem)) && i.Reference() != "" {
				t.Errorf("%s writes to %s", name, i.Reference())
			}
		}
		if len(used) > mostMaps {
			t.Errorf("%s has %d maps for a dry run: share more, or copy fewer", name, len(used))
		}
	}
}

// contents are all that packets can write.
func (w *world) contents() map[string][32]byte {
	w.Helper()
	all := map[string][32]byte{}
	for name, m := range w.lb.objects.all {
		switch m.Type() {
		case ebpf.ProgramArray, ebpf.RingBuf: // events are read, or an event of a dry run would be
		case ebpf.Array:
			all[name] = w.arrayContents(m)
		default:
			var key, value []byte
			var perCPU [][]byte
			var out any = &value
			if m.Type() == ebpf.PerCPUArray {
				out = &perCPU
			}
			var lines []string
			entries := m.Iterate()
			for entries.Next(&key, out) {
				lines = append(lines, fmt.Sprintf("%x %x %x", key, value, perCPU))
			}
			if err := entries.Err(); err != nil {
				w.Fatalf("%s: %v", name, err)
			}
			slices.Sort(lines)
			all[name] = sha256.Sum256([]byte(fmt.Sprint(lines)))
		}
	}
	return all
}

func (w *world) arrayContents(m *ebpf.Map) [32]byte {
	w.Helper()
	hash := sha256.New()
	const most = 4096
	keys := make([]uint32, most)
	values := reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(int(m.ValueSize()), reflect.TypeFor[byte]())), most, most)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values.Interface(), nil)
		for i := range n {
			hash.Write(values.Index(i).Slice(0, int(m.ValueSize())).Bytes())
		}
		if err != nil {
			break // the end
		}
	}
	return [32]byte(hash.Sum(nil))
}

// anyMadeUp is a packet that one may ask about: of any service, at any time of a connection's life.
func (w *world) anyMadeUp(r *rand.Rand) MadeUp {
	s := w.want.Services[r.IntN(len(w.want.Services))]
	vips := s.VIPs()
	f := flowTo(vips[r.IntN(len(vips))], s.Ports[r.IntN(len(s.Ports))], r.IntN(6))
	if r.IntN(8) == 0 {
		f.service = netip.AddrPortFrom(f.service.Addr(), 999)
	}
	m := MadeUp{Client: f.client, VIP: f.service, UDP: s.Protocol == model.ProtocolUDP, Payload: make([]byte, []int{0, 30, 1460}[r.IntN(3)])}
	id := s.Servers[r.IntN(len(s.Servers))].ID
	if m.UDP {
		if s.Affinity == model.AffinityQUIC && r.IntN(3) > 0 {
			id := w.idOf(s.Name, uint64(id), w.want.Keys.Current, byte(r.IntN(200)))
			m.Payload = slices.Concat([]byte{0x40}, id, make([]byte, 30))
			if r.IntN(2) == 0 {
				m.Payload = longHeader(id, []byte("client"))
			}
		}
		return m
	}
	m.Flags = []byte{model.TCPSyn, model.TCPSyn, model.TCPAck, model.TCPPsh | model.TCPAck, model.TCPFin | model.TCPAck, model.TCPRst}[r.IntN(6)]
	m.Timestamps = r.IntN(4) > 0
	m.Timestamp = r.Uint32()
	if m.Flags&model.TCPSyn == 0 {
		m.Echo = []uint32{0, r.Uint32(), w.cookieFor(s.Name, f, id, w.want.Keys.Current)}[r.IntN(3)]
	}
	return m
}

// tellsWhatHappens asks about packets of all services, and sends each.
func (w *world) tellsWhatHappens(t *testing.T, rounds, packets int) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	mustSet(w.lb.LoadAll())
	w.eachService(func(place plan.Place) { // the first turn is drawn
		mustSet(w.lb.objects.Turns.Put(place.Number, lbCursor{Turn: 1 + r.Uint32N(1000)}))
	})
	trace := w.trace(TraceFilter{}, 1<<20)
	verdicts := map[string]int{}
	for range rounds {
		asked := make([]MadeUp, packets)
		for i := range asked {
			asked[i] = w.anyMadeUp(r)
		}
		before := w.contents()
		for _, m := range asked {
			if _, err := w.lb.DryRun(m, loopback, 2); err != nil {
				t.Fatal(err)
			}
		}
		after := w.contents()
		for name := range before {
			if before[name] != after[name] {
				t.Errorf("dry runs changed %s", name)
			}
		}
		for _, m := range asked {
			w.payAnswers()
			told, err := w.lb.DryRun(m, loopback, 1)
			if err != nil {
				t.Fatal(err)
			}
			frame := m.frame(nodeMAC[:])
			options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+dryHeadroom)}
			action, err := w.lb.Program().Run(&options)
			mustSet(err)
			event, err := trace.Next()
			if err != nil {
				t.Fatalf("%+v left no event, but for a dry one of %s: %v", m, verdictNames[told[0].Verdict], err)
			}
			verdicts[verdictNames[event.Verdict]]++
			told[0].Time, event.Time = time.Time{}, time.Time{}
			if !reflect.DeepEqual(told[0].TraceEvent, event) {
				t.Fatalf("%+v\nwas said to be %s %+v\nand was         %s %+v", m, verdictNames[told[0].Verdict], told[0].TraceEvent, verdictNames[event.Verdict], event)
			}
			if event.Verdict == uint8(lbVerdictASKED_PEER) { // with the server that it proposes, by chance
				told[0].Frame, options.DataOut = told[0].Frame[:42], options.DataOut[:42]
			}
			if told[0].Action != action || !bytes.Equal(told[0].Frame, options.DataOut) {
				t.Fatalf("%+v: %s\nwas said to leave as %d %x\nand left as          %d %x", m, verdictNames[event.Verdict], told[0].Action, told[0].Frame, action, options.DataOut)
			}
		}
	}
	t.Logf("%v", verdicts)
}

// Promise: `ballast ctl explain` changes nothing that packets use, and says what then happens to that very packet.
func TestADryRunSaysWhatHappensAndChangesNothing(t *testing.T) {
	through := func(s *model.Service) {
		s.Return, s.Ports = model.ReturnThrough, []uint16{80}
		setPorts(s, 8080)
	}
	choices := choosing(fastVIP(24), false, model.AffinityHistory, 3, 2)
	choices.Name = "choices"
	session := func(s *model.Service) { s.Session = model.SessionTLS }
	services := []model.Service{serviceOf("web", fastVIP(10), fastCookies(14, nil)), serviceOf("web6", vip6, fastCookies(14, nil)),
		serviceOf("rr", fastVIP(11), func(s *model.Service) { s.Dispatch = model.DispatchRR }),
		serviceOf("least", fastVIP(12), func(s *model.Service) { s.Dispatch = model.DispatchLeast }),
		serviceOf("gue", fastVIP(13), fastCookies(14, func(s *model.Service) { s.Forward = model.ForwardGUE })),
		serviceOf("over6", fastVIP(14), fastCookies(14, withServers(true, 1, 2))),
		serviceOf("l2", fastVIP(15), fastHash(func(s *model.Service) { s.Forward = model.ForwardL2 })),
		serviceOf("nat", node4, through),
		serviceOf("local", fastVIP(16), fastHash(func(s *model.Service) { s.Affinity = model.AffinityLocal })),
		serviceOf("udp-local", fastVIP(17), fastHash(func(s *model.Service) { fastDatagrams(model.ForwardIPIP)(s); s.Affinity = model.AffinityLocal })),
		serviceOf("udp6", plus(vip6, 1), fastHash(fastDatagrams(model.ForwardIPIP))),
		tableOf("table", fastVIP(18), nil), tableOf("table6", plus(vip6, 2), func(s *model.Service) { s.Table.IndexBits = 2 }),
		serviceOf("quic", fastVIP(19), fastQUIC(model.QUICSinglePass, 0, model.ForwardIPIP)),
		serviceOf("session", fastVIP(20), session), serviceOf("syn-proxy", fastVIP(21), withSYNProxy),
		serviceOf("allow", fastVIP(22), allowing(fastCookies(14, nil))), serviceOf("limit", fastVIP(23), limiting(fastCookies(14, nil))),
		choices,
		serviceOf("predecessor", fastVIP(25), following(model.ForwardIPIP, 500, nil, oldBalancer))}
	for i := range services {
		if d := services[i].Dispatch; d == model.DispatchP2C || d == model.DispatchAWFD { // they draw
			services[i].Dispatch = model.DispatchMaglev
		}
	}
	w := newWorld(t, services...)
	w.changeSources(func(uint64) uint64 { return 0 })
	for id, index := range w.tables.Places()["nat"].Counters {
		mustSet(w.lb.SetClock(index, uint32(id)<<24))
	}
	w.tellsWhatHappens(t, 3, 150)
}

func TestADryRunSaysWhatHappensToReplicatedConnections(t *testing.T) {
	replicatedWorld(t).tellsWhatHappens(t, 2, 100)
}

// What a policy would choose next is asked for again and again; no turn of it is taken.
func TestADryRunShowsAllThatAPolicyMayChoose(t *testing.T) {
	w := newWorld(t, serviceOf("rr", vip4, func(s *model.Service) { s.Dispatch = model.DispatchRR }),
		serviceOf("p2c", fastVIP(11), func(s *model.Service) { s.Dispatch = model.DispatchP2C }))
	for _, vip := range []netip.Addr{vip4, fastVIP(11)} {
		told, err := w.lb.DryRun(MadeUp{Client: flowTo(vip, 80, 1).client, VIP: netip.AddrPortFrom(vip, 80), Flags: model.TCPSyn, Timestamps: true}, loopback, 60)
		if err != nil {
			t.Fatal(err)
		}
		chosen := map[uint16]int{}
		for _, outcome := range told {
			chosen[outcome.Server]++
		}
		if len(chosen) != 3 {
			t.Errorf("%v: chosen are %v of 3 servers", vip, chosen)
		}
	}
}
