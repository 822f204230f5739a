package lb

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Actions of XDP (linux/bpf.h).
const (
	xdpDrop     = 1
	xdpPass     = 2
	xdpTX       = 3
	xdpRedirect = 4
)

// testIfindex is the loopback device of every namespace, which test runs come in by: what leaves there again is XDP_TX.
const testIfindex = 1

var (
	vip4    = netip.MustParseAddr("198.51.100.10")
	vip6    = netip.MustParseAddr("2001:db8::10")
	node4   = netip.MustParseAddr("10.1.0.2")
	node6   = netip.MustParseAddr("fd00:1::2")
	client4 = netip.MustParseAddr("203.0.113.7")
	client6 = netip.MustParseAddr("2001:db8:f00::7")

	nodeMAC   = [6]byte{2, 0, 0, 0, 0, 1}
	routerMAC = [6]byte{2, 0, 0, 0, 0, 2}
)

// world is a load balancer with its tables, and what a packet test may expect of it.
type world struct {
	testing.TB
	lb     *LB
	tables *plan.Tables
	path   string // name of the program that packets go through; empty: the one that is attached
	reference
}

var testLimits = plan.Limits{Services: 64, Servers: 256, ServerIDs: 1 << 18, Slots: 1 << 18, Rounds: 1 << 13, Entries: 1 << 12, Local: 1 << 10}

// shared is loaded once: the verifier takes longer than all the packets of a test. Worlds empty it before they fill it.
var shared struct {
	lb       *LB
	tables   *plan.Tables
	assigned map[uint32]refAssignment // as the last world left them
	starting map[uint16]refStarting
}

// newWorld fills a load balancer with the services. It skips where programs cannot be loaded. One world lives at a time.
func newWorld(t testing.TB, services ...model.Service) *world {
	t.Helper()
	if shared.lb == nil {
		shared.lb, shared.tables = loadLB(t), plan.NewTables(testLimits)
	}
	w := &world{TB: t, lb: shared.lb, tables: shared.tables, reference: newReference()}
	w.update(func(*plan.Want) {})
	w.forget()
	shared.assigned, shared.starting = w.connections.assigned, w.starting
	w.acceptTunnels(netip.Addr{})
	w.want.Keys = testKeys(1)
	w.update(func(want *plan.Want) {
		for _, s := range services {
			want.Services = append(want.Services, plan.Service{Service: s})
		}
	})
	return w
}

// acceptTunnels makes the node one of the second tier at that address.
func (w *world) acceptTunnels(address netip.Addr) {
	w.Helper()
	w.tunnel = address
	if err := w.lb.AcceptTunnels(address); err != nil {
		w.Fatal(err)
	}
}

func loadLB(t testing.TB) *LB {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loading BPF programs needs root")
	}
	lb, err := Open("", testLimits)
	if err != nil {
		t.Fatal(err)
	}
	return lb
}

// testKeys are keys of the given epochs; the last one is current.
func testKeys(epochs ...uint32) model.Keys {
	keys := model.Keys{Placement: [16]byte{1, 2, 3}, Cookie: map[uint32][16]byte{}}
	for _, epoch := range epochs {
		keys.Current = epoch
		keys.Cookie[epoch] = [16]byte{byte(epoch), 0xaa, 15: byte(epoch)}
	}
	return keys
}

// serviceOf is a TCP service on ports 80 and 443 with servers of ids 1 to 3, its defaults applied after change.
func serviceOf(name string, vip netip.Addr, change func(*model.Service)) model.Service {
	s := model.NewService()
	s.Name, s.VIP, s.Ports, s.TableSlots = name, vip, []uint16{80, 443}, 251
	s.Choices = model.Choices{Candidates: 2, History: 3} // should it come to them
	for id := range uint16(3) {
		s.Servers = append(s.Servers, serverOf(id+1, vip.Is6()))
	}
	if change != nil {
		change(&s)
	}
	s.ApplyDefaults()
	return s
}

// serverOf is a server whose address follows from its id.
func serverOf(id uint16, ipv6 bool) model.Server {
	server := model.NewServer()
	server.ID, server.Weight, server.Name = id, 1, fmt.Sprint("s", id)
	server.Address = netip.AddrFrom4([4]byte{10, 1, 1 + byte(id>>8), byte(id)})
	if ipv6 {
		server.Address = netip.AddrFrom16([16]byte{0xfd, 0, 0, 1, 13: 1, 14: byte(id >> 8), 15: byte(id)})
	}
	return server
}

// testPath is a made-up way to a server, told apart by its MAC address.
func testPath(address netip.Addr) plan.Path {
	raw := address.AsSlice()
	path := plan.Path{Ifindex: testIfindex, Source: node4, SourceMAC: nodeMAC, MTU: 1600}
	path.DestinationMAC = [6]byte{2, 1, raw[len(raw)-4], raw[len(raw)-3], raw[len(raw)-2], raw[len(raw)-1]}
	if address.Is6() {
		path.Source = node6
	}
	return path
}

// update changes what is wanted and carries it out. Servers without a path get one.
func (w *world) update(change func(*plan.Want)) {
	w.Helper()
	if w.want.Paths == nil {
		w.want.Paths = map[netip.Addr]plan.Path{}
	}
	change(&w.want)
	fleet := model.Fleet{Keys: w.want.Keys, Nodes: w.want.Tier.Second}
	w.steered = nil
	for _, s := range w.want.Services {
		fleet.Services = append(fleet.Services, s.Service)
		w.steered = append(w.steered, w.asSteered(s))
		for _, server := range slices.Concat(s.Servers, w.steered[len(w.steered)-1].Servers) {
			if _, ok := w.want.Paths[server.Address]; !ok {
				w.want.Paths[server.Address] = testPath(server.Address)
			}
		}
		for _, address := range s.Predecessor.Addresses {
			if _, ok := w.want.Paths[address]; !ok {
				path := testPath(address)
				path.OnLink = true
				w.want.Paths[address] = path
			}
		}
	}
	fleet.ApplyDefaults()
	if err := fleet.Validate(); err != nil {
		w.Fatal(err)
	}
	changes, err := w.tables.Update(&w.want)
	if err != nil {
		w.Fatal(err)
	}
	if err := w.lb.Apply(changes); err != nil {
		w.Fatal(err)
	}
	for i := range w.steered {
		w.fillSlots(&w.steered[i])
	}
	for name, place := range w.tables.Places() {
		if w.connections.places[name] != place.Table {
			w.connections.move(name, place.Table)
		}
	}
}

// result is what became of one frame.
type result struct {
	action  uint32
	frame   []byte
	service string
	verdict lbVerdict
	order   []byte // in fragments: the frame that lb_release gets
	front   int
}

// run sends a frame through the program and finds out, from the counters, what the program says it did: exactly one verdict.
func (w *world) run(frame []byte) result {
	w.Helper()
	w.payAnswers()
	before := w.verdicts()
	out := make([]byte, len(frame)+256)
	options := ebpf.RunOptions{Data: frame, DataOut: out}
	action, err := w.program().Run(&options)
	if err != nil {
		w.Fatalf("test run of %d bytes: %v", len(frame), err)
	}
	got := result{action: action, frame: options.DataOut}
	found := 0
	for key, packets := range w.verdicts() {
		if delta := packets - before[key]; delta > 0 {
			found += int(delta)
			got.service, got.verdict = key.service, key.verdict
		}
	}
	if found != 1 {
		w.Fatalf("one packet was counted under %d verdicts", found)
	}
	if got.verdict == lbVerdictFORWARDED_IN_FRAGMENTS {
		order := readOrder(got.frame)
		if number := w.tables.Places()[got.service].Number; uint32(order.number) != number {
			w.Fatalf("an order about service %d, not %d", order.number, number)
		}
		server := targetIn(w.steeredService(got.service), order.id)
		got.order, got.front = got.frame, order.front
		got.frame = order.undone(got.frame, w.want.Paths[server.Address])
	}
	return got
}

// payAnswers lets the next packet be answered, however many have been.
func (w *world) payAnswers() {
	w.Helper()
	for answer := range w.lb.objects.AnswerDebts.MaxEntries() {
		if err := w.lb.objects.AnswerDebts.Put(answer, make([]uint64, ebpf.MustPossibleCPU())); err != nil {
			w.Fatal(err)
		}
	}
}

// program is the one that packets go through.
func (w *world) program() *ebpf.Program {
	if w.path == "" {
		return w.lb.Program()
	}
	return w.lb.objects.program(w.path)
}

// eachPath runs a test with the attached program, whose fast path takes most packets, and with the long way alone.
func eachPath(t *testing.T, test func(t *testing.T, path string)) {
	for _, path := range []string{"", "lb_slow"} {
		t.Run("by "+cmp.Or(path, "lb"), func(t *testing.T) { test(t, path) })
	}
}

// runOnly sends a frame through the program where the counters tell the rest.
func (w *world) runOnly(frame []byte) {
	w.Helper()
	if _, err := w.lb.Program().Run(&ebpf.RunOptions{Data: frame}); err != nil {
		w.Fatal(err)
	}
}

var verdictNames = func() []string {
	names, err := VerdictNames()
	if err != nil {
		panic(err)
	}
	return names
}()

// check runs a frame and compares everything that can be seen of it with the reference.
func (w *world) check(frame []byte) (result, expectation) {
	w.Helper()
	inner, verdict := w.takeOff(frame)
	want := expectation{verdict: verdict, action: xdpDrop}
	w.relayed = !bytes.Equal(inner, frame)
	if verdict == lbVerdictVERDICT_CONTINUE {
		want = w.expect(inner)
	}
	got := w.run(frame)
	w.compare(inner, got, want)
	if want.learn != nil {
		var ids []uint16
		if id := want.serverOf(got.frame); id != 0 {
			ids = []uint16{id}
		}
		want.learn(ids)
	}
	return got, want
}

// checkVerdict is check for a packet whose verdict the test knows.
func (w *world) checkVerdict(frame []byte, verdict lbVerdict) (result, expectation) {
	w.Helper()
	got, want := w.check(frame)
	if got.verdict != verdict {
		w.Fatalf("got verdict %s, want %s", verdictNames[got.verdict], verdictNames[verdict])
	}
	return got, want
}

// forget empties what packets have taught, here and in the reference.
func (w *world) forget() {
	clear(w.fragments)
	clear(w.closing)
	clear(w.local)
	clear(w.lb.tables.connections.Entries)
	for place := range shared.assigned {
		if err := w.lb.objects.Assignments.Put(place, uint64(0)); err != nil {
			w.Fatal(err)
		}
	}
	clear(shared.assigned)
	for place := range shared.starting {
		if err := w.lb.objects.Starting.Put(uint32(place), uint64(0)); err != nil {
			w.Fatal(err)
		}
	}
	clear(shared.starting)
	for _, m := range []*ebpf.Map{w.lb.objects.Fragments, w.lb.objects.Closing, w.lb.objects.LocalConnections, w.lb.objects.Suspects} {
		w.empty(m)
	}
}

func (w *world) empty(m *ebpf.Map) {
	w.Helper()
	var key, value []byte
	keys := [][]byte{}
	for entries := m.Iterate(); entries.Next(&key, &value); {
		keys = append(keys, append([]byte(nil), key...))
	}
	for _, key := range keys {
		if err := m.Delete(key); err != nil {
			w.Fatal(err)
		}
	}
}

// serverTraffic returns the counters of all servers of a service, by id.
func (w *world) serverTraffic(name string) map[uint16]ServerTraffic {
	w.Helper()
	return w.trafficAt(w.tables.Places()[name])
}

func (w *world) trafficAt(place plan.Place) map[uint16]ServerTraffic {
	w.Helper()
	all := map[uint16]ServerTraffic{}
	for id, index := range place.Counters {
		traffic, err := w.lb.ServerTraffic(index)
		if err != nil {
			w.Fatal(err)
		}
		all[id] = traffic
	}
	return all
}
