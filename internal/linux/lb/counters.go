// Traffic by verdict and by server, open connections, clocks of servers.
package lb

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/algo/choice"
	"github.com/ballast-lb/ballast/internal/linux/verdict"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// ServerTraffic is what went to a server, the connections this node dispatched to it, and those that it knows to be closed: a FIN or RST of
// the client passed with a cookie, maybe of a connection that another node dispatched. Connections that carry no cookie count as closed
// at once, because nobody could tell their end.
type ServerTraffic struct {
	verdict.Traffic
	Connections uint64 `json:"connections"`
	Closed      uint64 `json:"closed"`
}

// Open is how many connections with a cookie are left by these counters. Clients that vanish without a word are in it for ever.
func (t ServerTraffic) Open() int32 {
	return int32(min(max(int64(t.Connections-t.Closed), 0), math.MaxInt32))
}

// VerdictNames returns the names of all verdicts by value.
var VerdictNames = sync.OnceValues(func() ([]string, error) {
	types, err := types()
	if err != nil {
		return nil, err
	}
	names, err := verdict.Names(types, "verdict")
	if err != nil {
		return nil, err
	}
	return names[:lbVerdictVERDICTS], nil
})

// VerdictTraffic returns what each verdict was given to, by its value, for the service at a place; the zero Place: packets of no service.
func (lb *LB) VerdictTraffic(service plan.Place) ([]verdict.Traffic, error) {
	lb.retired.RLock()
	defer lb.retired.RUnlock()
	out := make([]verdict.Traffic, lbVerdictVERDICTS)
	for verdict := range out {
		perCPU, err := lb.verdictCounter(service.Number, lbVerdict(verdict))
		if err != nil {
			return nil, err
		}
		for _, t := range perCPU {
			add(&out[verdict], t)
		}
	}
	byCookie, gone := &out[lbVerdictFORWARDED_BY_COOKIE], &out[lbVerdictVERDICT_CONTINUE]
	add(byCookie, lbTraffic{Packets: gone.Packets, Bytes: gone.Bytes})
	*gone = verdict.Traffic{}
	for _, index := range service.Counters {
		_, fast, err := lb.serverCounter(index)
		if err != nil {
			return nil, err
		}
		add(byCookie, fast)
	}
	return out, nil
}

// TimestampSearches returns how many packets of a service had TCP options that match none of the usual patterns, and were searched for the timestamp.
func (lb *LB) TimestampSearches(service plan.Place) (searches uint64, err error) {
	var perCPU []uint64
	if err := lb.objects.TimestampSearches.Lookup(service.Number, &perCPU); err != nil {
		return 0, fmt.Errorf("read the searches for timestamps of service %d: %w", service.Number, err)
	}
	for _, n := range perCPU {
		searches += n
	}
	return searches, nil
}

// AnsweredSYNs is how many SYNs of a service were answered.
func (lb *LB) AnsweredSYNs(service plan.Place) (answered uint64, err error) {
	perCPU, err := lb.verdictCounter(service.Number, lbVerdictANSWERED_SYN)
	for _, t := range perCPU {
		answered += t.Packets
	}
	return answered, err
}

func (lb *LB) verdictCounter(service uint32, verdict lbVerdict) (perCPU []lbTraffic, err error) {
	if err := lb.objects.VerdictCounters.Lookup(service*uint32(lbVerdictVERDICTS)+uint32(verdict), &perCPU); err != nil {
		return nil, fmt.Errorf("read counters of service %d: %w", service, err)
	}
	return perCPU, nil
}

func add(to *verdict.Traffic, t lbTraffic) {
	to.Packets, to.Bytes = to.Packets+t.Packets, to.Bytes+t.Bytes
}

// countedAtOnce is how many servers' counters are read by one call: some 60 bytes of each for each CPU.
const countedAtOnce = 256

// Forwarded counts the packets that were sent to servers, by what a load balancer has left pinned in dir, of whatever layout; known is false where
// nothing is. The number is of use to see whether it grows: a server that leaves its service takes its own along.
func Forwarded(dir string) (packets uint64, known bool, err error) {
	role, _, _ := strings.Cut(Layout, "-")
	pins, err := filepath.Glob(filepath.Join(dir, role+"-v*", lbMapServerCounters))
	for _, pin := range pins {
		more, err := forwardedAt(pin)
		if err != nil {
			return 0, false, fmt.Errorf("count forwarded packets by %s: %w", pin, err)
		}
		packets += more
	}
	return packets, len(pins) > 0, err
}

func forwardedAt(pin string) (packets uint64, err error) {
	counters, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return 0, err
	}
	defer counters.Close()
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return 0, err
	}
	keys, servers := make([]uint32, countedAtOnce), make([]lbServerTraffic, countedAtOnce*cpus)
	for cursor := new(ebpf.MapBatchCursor); ; {
		n, err := counters.BatchLookup(cursor, keys, servers, nil)
		for i := range servers[:n*cpus] {
			packets += servers[i].Packets + servers[i].Fast.Packets
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return packets, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// retireCounter moves to a service what was counted as fast at a server that leaves it. Packets that are under way just then may not be counted.
func (lb *LB) retireCounter(service, index uint32) error {
	lb.retired.Lock()
	defer lb.retired.Unlock()
	perCPU, err := lb.verdictCounter(service, lbVerdictVERDICT_CONTINUE)
	if err != nil {
		return err
	}
	_, fast, err := lb.serverCounter(index)
	if err != nil {
		return err
	}
	if err := lb.ResetServerTraffic(index); err != nil {
		return err
	}
	perCPU[0].Packets, perCPU[0].Bytes = perCPU[0].Packets+fast.Packets, perCPU[0].Bytes+fast.Bytes
	return lb.objects.VerdictCounters.Put(service*uint32(lbVerdictVERDICTS)+uint32(lbVerdictVERDICT_CONTINUE), perCPU)
}

// ServerTraffic returns what went to the server that counts under index.
func (lb *LB) ServerTraffic(index uint32) (ServerTraffic, error) {
	out, fast, err := lb.serverCounter(index)
	add(&out.Traffic, fast)
	return out, err
}

// serverCounter returns a server's counters, with what took the fast path apart.
func (lb *LB) serverCounter(index uint32) (out ServerTraffic, fast lbTraffic, err error) {
	var perCPU []lbServerTraffic
	if err := lb.objects.ServerCounters.Lookup(index, &perCPU); err != nil {
		return out, fast, fmt.Errorf("read counters of server at %d: %w", index, err)
	}
	for _, t := range perCPU {
		out.Packets += t.Packets
		out.Bytes += t.Bytes
		out.Connections += t.Connections
		out.Closed += t.Closed
		fast.Packets += t.Fast.Packets
		fast.Bytes += t.Fast.Bytes
	}
	return out, fast, nil
}

// OpenConnections returns this node's estimate for the server that counts under index: SYNs less FINs and RSTs, with what
// AdjustOpenConnections added. Only p2c and least keep it; for services of other policies there is ServerTraffic.Open.
func (lb *LB) OpenConnections(index uint32) int32 {
	return max(0, atomic.LoadInt32(&lb.tables.loads[index].value))
}

// countOpen lets the estimate begin with what the counters say.
func (lb *LB) countOpen(index uint32) error {
	traffic, err := lb.ServerTraffic(index)
	if err != nil {
		return err
	}
	atomic.StoreInt32(&lb.tables.loads[index].value, traffic.Open())
	return nil
}

// AdjustOpenConnections adds to the estimates of a service, by server id. Packets change them at the same time.
func (lb *LB) AdjustOpenConnections(service plan.Place, change map[uint16]int32) {
	for id, by := range change {
		if index, ok := service.Counters[id]; ok && by != 0 {
			lb.addOpen(index, by)
		}
	}
	lb.writeLoads(lb.ServiceRow(service.Number))
}

// addOpen adds to an estimate, which stays above 0.
func (lb *LB) addOpen(index uint32, by int32) {
	for load := &lb.tables.loads[index].value; ; {
		before := atomic.LoadInt32(load)
		after := max(0, int64(before)+int64(by))
		if int64(before) == after || atomic.CompareAndSwapInt32(load, before, int32(min(after, math.MaxInt32))) {
			return
		}
	}
}

// writeLoads sets the least loaded servers of a row by the loads, if its dispatch is least. What packets report meanwhile may be lost: it is reported again
// with the next connection that begins or ends there.
func (lb *LB) writeLoads(row uint32) {
	s := lb.Service(row)
	if s.Dispatch != uint8(model.DispatchLeast) {
		return
	}
	leastLoaded := choice.NewLeastLoaded(nil, nil)
	for _, word := range lb.Rounds(s.RoundsBase+s.RoundsCount-uint32(s.IDTurns), uint32(s.IDTurns)) {
		if turn, counter := plan.ReadTurn(word); word != 0 {
			leastLoaded.Report(turn, int64(turn.Price)*int64(lb.OpenConnections(counter)))
		}
	}
	for group, known := range leastLoaded {
		atomic.StoreInt64(&lb.tables.leastLoaded[row][group], known.Cost<<16|int64(known.Server))
	}
}

// SetClock tells the clock of a return: through server: its TSval less this host's monotonic clock, in ms.
func (lb *LB) SetClock(index uint32, offset uint32) error {
	return lb.objects.Clocks.Put(index, uint64(clockKnown)|uint64(offset))
}

// CLOCK_KNOWN and CLOCK_DOUBTED.
const (
	clockKnown   = 1 << 32
	clockDoubted = 1 << 33
)

// Clock reports whether SetClock has told that clock, and whether packets that claim to be that server's do not go with it.
func (lb *LB) Clock(index uint32) (known, doubted bool, err error) {
	var clock uint64
	err = lb.objects.Clocks.Lookup(index, &clock)
	return clock&clockKnown != 0, clock&clockDoubted != 0, err
}
