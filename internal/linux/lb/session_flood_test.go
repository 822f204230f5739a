package lb

import (
	"errors"
	"maps"
	"os"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/plan"
)

// held is how much there is in the maps that grow, by name, and what the kernel has for each of all.
func (w *world) held() (entries, bytes map[string]uint64) {
	w.Helper()
	entries, bytes = map[string]uint64{}, map[string]uint64{}
	for name, m := range w.lb.objects.all {
		info, err := m.Info()
		mustSet(err)
		bytes[name], _ = info.Memlock()
		switch m.Type() {
		case ebpf.Hash, ebpf.LRUHash, ebpf.PerCPUHash, ebpf.LRUCPUHash, ebpf.LPMTrie:
		default:
			continue
		}
		entries[name] = 0
		for key, err := m.NextKeyBytes(nil); key != nil || err != nil; key, err = m.NextKeyBytes(key) {
			if errors.Is(err, ebpf.ErrKeyNotExist) {
				break
			}
			mustSet(err)
			entries[name]++
		}
	}
	w.changeBegun(w.begunPlaces(), func(begun *lbSessionBegun) {
		if begun.Id != 0 {
			entries["sessions_begun"]++
		}
	})
	return entries, bytes
}

// Each SYN is of another client. Connections that begin meanwhile do, and those that there are go on.
//
// Promise: A SYN flood of `session: tls` is answered and stores nothing: no map and no daemon grows, and other
// connections begin and go on.
// Also held by TestConnectionsOfATLSSessionReachOneServer.
func TestAFloodOfSYNsOfSessionsLeavesNothing(t *testing.T) {
	packets := uint32(200_000)
	if os.Getenv("BALLAST_LONG") != "" {
		packets = 10_000_000
	}
	w := newWorld(t, serviceOf("web", vip4, withSessions))
	b, err := wrapper.Open()
	mustSet(err)
	defer b.Close()
	const rounds, legitimate = 10, 12
	converse := func() {
		for n := range legitimate {
			w.converse(flowTo(vip4, 443, n), n)
		}
	}
	w.update(func(want *plan.Want) { want.Keys = testKeys(1, 2) })
	converse()
	entries, bytes := w.held()
	if entries["sessions_begun"] < legitimate || bytes["sessions_begun"] == 0 {
		t.Fatalf("before: %v", entries)
	}
	cell := w.benchCell(syn, 1<<24)
	cell.CookieBits, cell.Growth = 0, 14+20+20+12-wrapper.FrameLength // the answer has timestamps, too
	answered := func() uint64 { return w.verdicts()[verdictKey{"web", lbVerdictANSWERED_SYN}] }
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for round := range uint32(rounds) {
		flows := make([]uint32, packets/rounds)
		for i := range flows {
			flows[i] = round*uint32(len(flows)) + uint32(i)
		}
		before := answered()
		mustSet(errors.Join(b.Put(w.lb.Program()), b.List(&cell, flows, nil)))
		run, err := b.Run(uint32(len(flows)))
		if err != nil || run.Surprises > 0 || answered()-before != run.Runs+run.Discarded {
			t.Fatalf("%d of %d SYNs were answered, %d otherwise than expected: %v", answered()-before, run.Runs+run.Discarded, run.Surprises, err)
		}
		converse()
	}
	entriesNow, bytesNow := w.held()
	if !maps.Equal(entries, entriesNow) || !maps.Equal(bytes, bytesNow) {
		t.Errorf("entries before %v\nand after %v,\nbytes before %v\nand after %v", entries, entriesNow, bytes, bytesNow)
	}
}
