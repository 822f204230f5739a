package lb

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

type verdictKey struct {
	service string // empty: none
	verdict lbVerdict
}

// counters are what packets were counted as, of all services.
type counters struct {
	verdicts map[verdictKey]uint64 // packets, where there were any
	servers  map[string]map[uint16]ServerTraffic
}

// counters reads, around each frame of a test, in two system calls what VerdictTraffic and ServerTraffic read by one for each counter. Numbers that no service
// has are read too, up to the highest that one has. With names: the verdicts of these services alone, empty: of none.
func (w *world) counters(names ...string) counters {
	w.Helper()
	places := w.tables.Places()
	numbered, servers := []string{""}, uint32(0)
	for name, place := range places {
		for uint32(len(numbered)) <= place.Number {
			numbered = append(numbered, fmt.Sprint("number ", len(numbered)))
		}
		numbered[place.Number] = name
		for _, index := range place.Counters {
			servers = max(servers, index+1)
		}
	}
	c := counters{map[verdictKey]uint64{}, map[string]map[uint16]ServerTraffic{}}
	if len(names) == 0 {
		w.addVerdicts(c.verdicts, 0, numbered...)
	}
	for _, name := range names {
		w.addVerdicts(c.verdicts, places[name].Number, name)
	}
	traffic, cpus := perCPU[lbServerTraffic](w.lb.objects.ServerCounters, 0, servers), ebpf.MustPossibleCPU()
	for name, place := range places {
		all := map[uint16]ServerTraffic{}
		for id, index := range place.Counters {
			var sum ServerTraffic
			for _, t := range traffic[int(index)*cpus : int(index+1)*cpus] {
				add(&sum.Traffic, lbTraffic{Packets: t.Packets, Bytes: t.Bytes})
				add(&sum.Traffic, lbTraffic{Packets: t.Fast.Packets, Bytes: t.Fast.Bytes})
				sum.Connections, sum.Closed = sum.Connections+t.Connections, sum.Closed+t.Closed
				if t.Fast.Packets > 0 && (len(names) == 0 || slices.Contains(names, name)) {
					c.verdicts[verdictKey{name, lbVerdictFORWARDED_BY_COOKIE}] += t.Fast.Packets
				}
			}
			all[id] = sum
		}
		c.servers[name] = all
	}
	return c
}

// addVerdicts adds those of services whose numbers follow one another.
func (w *world) addVerdicts(to map[verdictKey]uint64, first uint32, services ...string) {
	const verdicts = uint32(lbVerdictVERDICTS)
	cpus := ebpf.MustPossibleCPU()
	for i, t := range perCPU[lbTraffic](w.lb.objects.VerdictCounters, first*verdicts, uint32(len(services))*verdicts) {
		if t.Packets > 0 {
			key := verdictKey{services[i/cpus/int(verdicts)], lbVerdict(i / cpus % int(verdicts))}
			if key.verdict == lbVerdictVERDICT_CONTINUE {
				key.verdict = lbVerdictFORWARDED_BY_COOKIE // what servers that have left had counted as fast
			}
			to[key] += t.Packets
		}
	}
}

// perCPU reads values of an array from first on, each as all CPUs have it. A batch of the BPF library begins with the first of all.
func perCPU[V any](m *ebpf.Map, first, count uint32) []V {
	if count == 0 {
		return nil
	}
	keys, values := make([]uint32, count), make([]V, int(count)*ebpf.MustPossibleCPU())
	before, last := first-1, uint32(0)
	batch := struct { // union bpf_attr
		before, last, keys, values unsafe.Pointer
		count, fd                  uint32
		elementFlags, flags        uint64
	}{last: unsafe.Pointer(&last), keys: unsafe.Pointer(&keys[0]), values: unsafe.Pointer(&values[0]), count: count, fd: uint32(m.FD())}
	if first > 0 {
		batch.before = unsafe.Pointer(&before)
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_LOOKUP_BATCH, uintptr(unsafe.Pointer(&batch)), unsafe.Sizeof(batch))
	if errno != 0 || keys[0] != first || keys[count-1] != first+count-1 {
		panic(fmt.Sprintf("read %d counters from %d on: %d were read, to %d: %v", count, first, batch.count, last, errno))
	}
	return values
}

// verdicts are packets by what they were counted as, where there were any.
func (w *world) verdicts() map[verdictKey]uint64 {
	w.Helper()
	return w.counters().verdicts
}

// The load balancer reads counters one by one, as do these tests at once, on the fast path, on the slow one, and when a server has left.
func TestCountersThatAreReadAtOnceAreThoseReadOneByOne(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), udpService("dns", vip4, nil), serviceOf("six", vip6, nil))
	compare := func() {
		t.Helper()
		verdicts, servers, places := map[verdictKey]uint64{}, map[string]map[uint16]ServerTraffic{}, w.tables.Places()
		for name, place := range places {
			servers[name] = w.trafficAt(place)
		}
		places[""] = plan.Place{}
		for name, place := range places {
			traffic, err := w.lb.VerdictTraffic(place)
			progtest.Check(t, err)
			for verdict, counted := range traffic {
				if counted.Packets > 0 {
					verdicts[verdictKey{name, lbVerdict(verdict)}] = counted.Packets
				}
			}
		}
		one := maps.Clone(verdicts)
		maps.DeleteFunc(one, func(key verdictKey, _ uint64) bool { return key.service != "" && key.service != "six" })
		if now := w.counters("six", "").verdicts; !maps.Equal(now, one) {
			t.Errorf("of one service %v, want %v", now, one)
		}
		if now := w.counters(); !maps.Equal(now.verdicts, verdicts) || fmt.Sprint(now.servers) != fmt.Sprint(servers) {
			t.Errorf("at once %v, one by one %v, %v", now, verdicts, servers)
		}
	}
	for _, vip := range []netip.Addr{vip4, vip6} {
		name := map[bool]string{false: "web", true: "six"}[vip.Is6()]
		for n := range 40 {
			f := flowTo(vip, uint16(80+n%2*363), n)
			w.runOnly(f.frame(f.tcp(syn, synOptions(), nil)))
			w.runOnly(f.carrying(w.cookieFor(name, f, uint16(1+n%3), 1)))
			w.runOnly(f.frame(f.tcp(fin|ack, timestamps(1, w.cookieFor(name, f, uint16(1+n%3), 1)), nil)))
			w.runOnly(f.frame(f.udp(nil))[:20+n/2])
		}
	}
	compare()
	w.update(func(want *plan.Want) { s := service(want, "web"); s.Servers = slices.Clone(s.Servers)[:2] })
	compare()
}

// Promise: What a load balancer that has ended forwards is counted by what it has left, on every path of a packet.
func TestWhatIsPinnedTellsWhatIsForwarded(t *testing.T) {
	w := newWorld(t, policy(model.DispatchRR, 1))
	dir := progtest.Pins(t)
	if _, known, err := Forwarded(dir); known || err != nil {
		t.Errorf("nothing is pinned: %v, %v", known, err)
	}
	folder := filepath.Join(dir, Layout)
	progtest.Check(t, os.MkdirAll(folder, 0o700))
	progtest.Check(t, w.lb.objects.ServerCounters.Pin(filepath.Join(folder, lbMapServerCounters)))
	count := func() uint64 {
		t.Helper()
		packets, known, err := Forwarded(dir)
		if progtest.Check(t, err); !known {
			t.Error("it is not known")
		}
		return packets
	}
	before := count()
	w.connect(5)
	f := flowTo(vip4, 80, 0)
	for range 300 { // by cookie: the fast path
		w.check(f.frame(f.tcp(ack, timestamps(1, w.cookieFor("web", f, 1, 1)), nil)))
	}
	if more := count() - before; more != 305 {
		t.Errorf("%d packets are counted, not 305", more)
	}
	other, err := Open(filepath.Join(dir, "other"), plan.Limits{Services: 1, Servers: 1, ServerIDs: 256, Slots: 512, Rounds: 2})
	progtest.Check(t, err)
	progtest.Check(t, other.Close())
	if packets, known, err := Forwarded(filepath.Join(dir, "other")); packets != 0 || !known || err != nil {
		t.Errorf("of another that has ended: %d, %v, %v", packets, known, err)
	}
}
