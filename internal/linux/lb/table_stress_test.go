package lb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/linux/connections/tabletest"
	"github.com/ballast-lb/ballast/internal/linux/internal/wire"
	"github.com/ballast-lb/ballast/internal/model"
)

// stressFlow is a connection of the stress test. Others may send its packets, too, unless it is private.
type stressFlow struct {
	connection refConnection
	private    bool
	id         uint16
	base       uint32          // entry of index 0 of its partition
	owner      conntable.Owner // what entries of its say: port, check and id
	frame      []byte          // without flags and echo
	flags, at  int             // where those are in it
	fresh      uint32          // an echo that names no entry
	echo       atomic.Uint32
	held       uint32 // by a private one, as long as it sends no FIN or RST and nothing but those ends entries; 0: none
}

// stress sends packets from many threads at once.
type stress struct {
	*world
	flows   []*stressFlow
	stop    atomic.Bool
	lenient atomic.Bool // entries are swept that have not ended
	packets atomic.Uint64
	swept   atomic.Uint64
	sweeps  atomic.Uint64
	failed  chan string
	benches []*wrapper.Wrapper // that make up packets

	reclaimed, lost uint64 // connections that had ended whose indices packets took; of these, found no room in the log, before the test too
}

func (s *stress) fail(format string, args ...any) {
	select {
	case s.failed <- fmt.Sprintf(format, args...):
	default:
	}
}

// newStressFlow is a flow whose packets others make up.
func (w *world) newStressFlow(name string, c refConnection, id uint16) *stressFlow {
	x := &stressFlow{connection: c, id: id}
	hash := w.tableHash(service(&w.want, name), c)
	x.base, _ = w.connections.partition(name, hash)
	x.owner = conntable.Owner(wire.Port(c.client.Port())) | conntable.Owner(conntable.Check(hash))<<16 | conntable.Owner(id)<<32
	return x
}

func (w *world) stressFlow(name string, n int, private bool) *stressFlow {
	f := flowTo(service(&w.want, name).VIP, 443, n)
	x := w.newStressFlow(name, refConnection{name, f.client, 443}, uint16(1+n%3))
	x.private = private
	x.frame = f.frame(f.tcp(ack, timestamps(5, 0), nil))
	x.at = len(x.frame) - 4
	x.flags = len(x.frame) - 12 - 7
	x.fresh = w.cookieFor(name, f, x.id, 1)
	x.echo.Store(x.fresh)
	return x
}

// index is that of the entry that an echo names.
func (f *stressFlow) index(w *world, echo uint32) uint32 {
	layout := layoutOf(service(&w.want, f.connection.service))
	return (echo ^ f.fresh) >> layout.IDBits & (1<<layout.IndexBits - 1)
}

// work sends packets of flows from a thread on one CPU until it is told to stop.
func (s *stress) work(random *rand.Rand, cpu int, flows []*stressFlow) {
	s.pin(cpu)
	out := make([]byte, 256)
	for packets := 0; !s.stop.Load(); packets++ {
		s.step(random, flows[random.IntN(len(flows))], out)
		s.packets.Add(1)
	}
}

// pin binds the goroutine to a CPU until it ends.
func (s *stress) pin(cpu int) {
	runtime.LockOSThread() // and never unlocked: the thread ends with its affinity
	var only unix.CPUSet
	only.Set(cpu)
	if err := unix.SchedSetaffinity(0, &only); err != nil {
		s.fail("%v", err)
	}
}

func (s *stress) step(random *rand.Rand, f *stressFlow, out []byte) {
	echo, flags := f.echo.Load(), byte(ack)
	switch roll := random.IntN(20); {
	case roll < 3: // another connection of the same ports
		echo = f.fresh
	case roll < 7:
		flags = fin | ack
	case roll == 7:
		flags = rst
	}
	var storage [128]byte
	frame := append(storage[:0], f.frame...)
	frame[f.flags] = flags
	binary.BigEndian.PutUint32(frame[f.at:], echo)
	options := ebpf.RunOptions{Data: frame, DataOut: out}
	action, err := s.lb.Program().Run(&options)
	if err != nil || action != xdpTX || len(options.DataOut) != len(frame)+20 || !slices.Equal(options.DataOut[30:34], serverOf(f.id, false).Address.AsSlice()) {
		s.fail("%s: action %d, %v: %x", f.connection.client, action, err, options.DataOut)
		return
	}
	told := binary.BigEndian.Uint32(options.DataOut[f.at+20:])
	if f.private {
		s.expectHeld(f, flags, echo, told)
	}
	if random.IntN(10) > 0 { // or else the packet never came to the server
		f.echo.Store(told)
	}
}

// expectHeld sees to it that nobody takes the entry of a connection that lives. Whether times are lenient is read after the entry: the
// sweeper may come in between.
func (s *stress) expectHeld(f *stressFlow, flags byte, echo, told uint32) {
	if flags != ack {
		f.held = 0
		return
	}
	if told != echo { // it was given, or told again
		f.held = f.base + f.index(s.world, told)
	}
	if f.held == 0 {
		return
	}
	o := connections.LoadOwner(&s.lb.tables.connections.Entries[f.held])
	lives := o&(1<<48-1) == f.owner && (o.State() == conntable.StateNew || o.State() == conntable.StateOpen)
	if !lives && !s.lenient.Load() {
		s.fail("entry %d of %s is that of %016x", f.held, f.connection.client, uint64(o))
	}
}

// sweep frees what has ended, and in lenient times everything, as fast as it can.
func (s *stress) sweep(random *rand.Rand) {
	const never = 1 << 40
	for !s.stop.Load() {
		rules := connections.SweepRules{Limits: conntable.Limits{New: never, Idle: never}, Suspect: func(netip.Addr) bool { return random.IntN(2) == 0 }}
		if s.lenient.Load() {
			rules = connections.SweepRules{}
		}
		s.sweepOnce(&rules)
		s.sweeps.Add(1)
		if s.benches != nil {
			s.turn(s.benches[random.IntN(len(s.benches))], random)
			time.Sleep(100 * time.Microsecond) // lets all CPUs have at what it has freed
		}
	}
}

func (s *stress) sweepOnce(rules *connections.SweepRules) {
	for i := range s.want.Services {
		t := s.table(s.want.Services[i].Name)
		s.lb.Connections().Sweep(t, 0, t.Blocks, rules, func(*connections.Connection, connections.EndReason) { s.swept.Add(1) })
	}
}

// readReclaimed reads how many entries the program has taken from connections that had ended.
func (s *stress) readReclaimed() {
	s.Helper()
	reader, err := ringbuf.NewReader(s.lb.objects.EndedConnections)
	if err != nil {
		s.Fatal(err)
	}
	defer reader.Close()
	for reader.SetDeadline(time.Unix(1, 0)); ; s.reclaimed++ {
		if _, err := reader.Read(); errors.Is(err, os.ErrDeadlineExceeded) {
			break
		} else if err != nil {
			s.Fatal(err)
		}
	}
	lost, err := s.lb.ReclaimedLost()
	if err != nil {
		s.Fatal(err)
	}
	s.reclaimed, s.lost = s.reclaimed+lost-s.lost, lost
}

// passed waits until so many more packets have passed, or something is wrong.
func (s *stress) passed(count uint64) {
	s.Helper()
	for deadline, from := time.Now().Add(30*time.Second), s.packets.Load(); s.packets.Load() < from+count && len(s.failed) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("only %d packets pass", s.packets.Load()-from)
		}
	}
}

// expectSound audits both tables, now that nobody works on them.
func (s *stress) expectSound(added uint64) {
	s.Helper()
	s.readReclaimed()
	l := tabletest.Ledger{Added: added, Swept: s.swept.Load(), Reclaimed: s.reclaimed}
	for i := range s.want.Services {
		state := s.stateOfTable(s.want.Services[i].Name)
		l.Owned += state.Owned()
		for _, fault := range state.Faults() {
			s.Errorf("%s: %s", s.want.Services[i].Name, fault)
		}
		s.expectKnown(state)
	}
	if !l.Balances() {
		s.Errorf("an index was held twice, or lost: %+v", l)
	}
	s.Logf("%d packets, %d sweeps: %+v", s.packets.Load(), s.sweeps.Load(), l)
}

// expectKnown holds every entry to be that of a flow whose partition it is in.
func (s *stress) expectKnown(state tabletest.Copy) {
	s.Helper()
	for i := range state.Entries {
		o, at := connections.LoadOwner(&state.Entries[i]), state.Place.Base*conntable.BlockEntries+uint32(i)
		if o.State() != conntable.StateNone && !slices.ContainsFunc(s.flows, func(f *stressFlow) bool {
			return o&(1<<48-1) == f.owner && at > f.base && at < f.base+1<<state.Place.IndexBits
		}) {
			s.Errorf("entry %d is nobody's that there is: %016x", at, uint64(o))
		}
	}
}

// newStress fills a load balancer, whose table "web" takes 63 connections, and lets it tell of the entries that it takes from connections
// that have ended.
func newStress(t *testing.T, more ...model.Service) *stress {
	oneBlock := func(s *model.Service) {
		s.Table.Entries, s.Table.IndexBits = conntable.BlockEntries, conntable.BlockBits
	}
	s := &stress{world: newWorld(t, append(more, tableOf("web", vip4, oneBlock))...), failed: make(chan string, 1)}
	s.readReclaimed() // what earlier tests left unread
	s.reclaimed = 0
	mustSet(s.lb.objects.LogEnded.Set(uint32(1)))
	t.Cleanup(func() {
		mustSet(s.lb.objects.LogEnded.Set(uint32(0)))
		s.forgetAssignments()
	})
	return s
}

// forgetAssignments empties them all: the reference does not know what packets past it have left there.
func (w *world) forgetAssignments() {
	places := make([]uint32, conntable.Assignments)
	for place := range places {
		places[place] = uint32(place)
	}
	_, err := w.lb.objects.Assignments.BatchUpdate(places, make([]uint64, len(places)), nil)
	mustSet(err)
}

// run lets the workers and a sweeper run until so many packets have passed while only ended connections are swept, and as many while
// all are, and checks what is left.
func (s *stress) run(t *testing.T, random *rand.Rand, packets uint64, workers ...func()) {
	var group sync.WaitGroup
	before := s.verdicts()
	for _, work := range workers {
		group.Go(work)
	}
	sweeper := rand.New(rand.NewPCG(random.Uint64(), 0))
	group.Go(func() { s.sweep(sweeper) })
	s.passed(packets)
	s.lenient.Store(true)
	s.passed(packets)
	s.stop.Store(true)
	group.Wait()
	select {
	case why := <-s.failed:
		t.Fatal(why)
	default:
	}
	added, all := uint64(0), uint64(0)
	for key, packets := range s.verdicts() {
		delta := packets - before[key]
		all += delta
		if key.verdict == lbVerdictFORWARDED_ADDED {
			added += delta
		}
	}
	if all != s.packets.Load() {
		t.Errorf("%d packets were counted of %d", all, s.packets.Load())
	}
	s.expectSound(added)
	s.sweepOnce(&connections.SweepRules{})
	s.expectSound(added)
	for i := range s.want.Services {
		if o := s.lb.Connections().Occupancy(s.table(s.want.Services[i].Name)); o.Free != o.Entries {
			t.Errorf("%s: after all have ended %+v", s.want.Services[i].Name, o)
		}
	}
}

// Many threads send packets of few flows, of which too many want the same indices, while a sweeper does what it can to get in their way.
func TestNoIndexIsHeldTwiceOrLostOnManyCPUs(t *testing.T) {
	random := seeded(t)
	s := newStress(t, tableOf("web6", vip6, func(s *model.Service) {
		withServers(false, 1, 2, 3)(s)
		s.Table.Entries, s.Table.IndexBits = conntable.BlockEntries, 2
	}))
	const workers, private, shared = 4, 32, 32
	for n := range workers*private + shared {
		s.flows = append(s.flows, s.stressFlow([]string{"web", "web", "web", "web6"}[n%4], n, n >= shared))
	}
	var work []func()
	for worker := range workers {
		own := append(slices.Clone(s.flows[:shared]), s.flows[shared+worker*private:][:private]...)
		random := rand.New(rand.NewPCG(random.Uint64(), 0))
		work = append(work, func() { s.work(random, worker%runtime.NumCPU(), own) })
	}
	s.run(t, random, 120_000, work...)
}

// feed lets the kernel itself make up packets of the flows, as fast as it can, on one CPU. To begin a series costs it grace periods.
func (s *stress) feed(b *wrapper.Wrapper, cpu int) {
	s.pin(cpu)
	if err := b.Put(s.lb.Program()); err != nil {
		s.fail("%v", err)
	}
	for !s.stop.Load() {
		run, err := b.Run(50_000)
		if err != nil || run.Surprises > 0 {
			s.fail("%d surprises, %v", run.Surprises, err)
		}
		s.packets.Add(run.Runs + run.Discarded)
	}
}

// turn changes which packets are being made up: of connections that come, end and come again, and in lenient times of new ones only, so
// that all CPUs want whatever the sweeper frees.
func (s *stress) turn(b *wrapper.Wrapper, random *rand.Rand) {
	cell := s.benchCell([]byte{ack, ack, fin | ack, rst}[random.IntN(4)], 250)
	if s.lenient.Load() {
		cell = s.benchCell(ack, uint32(len(s.flows)))
	}
	mustSet(b.List(&cell, cell.Draw(1<<12, random.Uint64()), nil))
}

// benchCell is what the kernel makes up: packets of the first flows to the service "web", whose cookies name no entries.
func (w *world) benchCell(flags byte, flows uint32) wrapper.Cell {
	none := flow{netip.AddrPortFrom(netip.IPv4Unspecified(), 0), netip.AddrPortFrom(vip4, 443)}
	cell := wrapper.Cell{CookieKey: cookie.ServiceKey(w.want.Keys.Cookie[1], vip4, model.ProtocolTCP), Flows: flows, Growth: 20, IDs: 3,
		CookieBits: service(&w.want, "web").CookieBits, EpochParity: 1}
	copy(cell.Frame[:], none.frame(none.tcp(flags, timestamps(5, 0), make([]byte, 14))))
	return cell
}

// As above, with packets that the kernel makes up: nothing but the program stands between two of them.
func TestNoIndexIsHeldTwiceOrLostAtFullSpeed(t *testing.T) {
	random := seeded(t)
	s := newStress(t)
	cell := s.benchCell(ack, 1<<14)
	for n := range cell.Flows {
		s.flows = append(s.flows, s.newStressFlow("web", refConnection{"web", wrapper.Client(n), 443}, cell.Server(n)))
	}
	var work []func()
	for cpu := range runtime.NumCPU() {
		b, err := wrapper.Open()
		mustSet(err)
		t.Cleanup(func() { mustSet(b.Close()) })
		mustSet(b.List(&cell, cell.Draw(50_000, random.Uint64()), nil))
		work = append(work, func() { s.feed(b, cpu) })
		s.benches = append(s.benches, b)
	}
	s.run(t, random, 400_000, work...)
}
