package sessions

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/slowlink"
	"github.com/ballast-lb/ballast/internal/lab/process/tlsclient"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

const (
	segmentBytes = 1448 // of data, with timestamps
	segmentsRead = 3    // of ClientHellos: load balancers look at 4096 bytes; what is longer goes by the policy
	resumesEach  = 3    // connections after a client's first
)

// pattern is what happens to segments of a ClientHello.
type pattern struct {
	segments int
	name     string
	fault    slowlink.Fault
}

// patterns are all that can happen to one segment, to two that follow each other, and to all.
func patterns() (all []pattern) {
	for _, segments := range []int{1, 2, 3, 6, 9} {
		add := func(name string, fault slowlink.Fault) {
			all = append(all, pattern{segments, fmt.Sprintf("%d segments, %s", segments, name), fault})
		}
		add("whole", slowlink.Fault{})
		every := []int{}
		for i := range segments {
			every = append(every, i)
			add(fmt.Sprintf("%d lost", i), slowlink.Fault{Lost: []int{i}})
			add(fmt.Sprintf("%d doubled", i), slowlink.Fault{Doubled: []int{i}})
			if i+1 < segments {
				add(fmt.Sprintf("%d behind %d", i, i+1), slowlink.Fault{Swapped: []int{i}})
				add(fmt.Sprintf("%d and %d lost", i, i+1), slowlink.Fault{Lost: []int{i, i + 1}})
			}
		}
		if segments > 2 {
			add("all lost", slowlink.Fault{Lost: every})
			add("but the first lost", slowlink.Fault{Lost: every[1:]})
			add("but the last lost", slowlink.Fault{Lost: every[:segments-1]})
		}
		if segments > 1 {
			add("all doubled", slowlink.Fault{Doubled: every})
		}
	}
	return all
}

// runLoss has a client for each pattern, with an address of its own: all at once, with GRO and without.
func runLoss(run *scenario.Run) {
	all := patterns()
	with := setup("loss", service(scenario.VIP4, unchecked))
	with.Topology.Sources = len(all)
	var groups []tlsclient.Group
	for i := range all {
		one := &all[i]
		source := netip.AddrFrom4([4]byte{10, 10, 1, byte(i + 1)})
		one.fault.Source = source
		with.Topology.ClientHelloFaults = append(with.Topology.ClientHelloFaults, one.fault)
		more := 0
		if one.segments > 1 { // what a ClientHello needs, and a ticket, are less than a segment
			more = (one.segments-1)*segmentBytes + segmentBytes/8
		}
		groups = append(groups, tlsclient.Group{Name: one.name, Target: with.Services[0].Target(), Source: source.String(),
			Clients: 1, Sessions: 1, Resumes: resumesEach, TLS13: true, More: more})
	}
	seen := map[bool]map[string]tlsclient.Outcome{}
	passed := map[netip.Addr]slowlink.Seen{}
	outcome := run.Uncounted(with, func(t *world.Trial) {
		t.Endpoints.StartTLS(true, false)
		for _, merge := range []bool{true, false} {
			t.Event(fmt.Sprintf("GRO: %t", merge), func() {
				script.Check(t.Lab.Space(world.RouterNode).MergeSegments(world.ClientNode, merge))
				for i := range t.Network.LBs {
					script.Check(t.Lab.Space(world.LBName(i+1)).MergeSegments("eth0", merge))
				}
			})
			seen[merge] = t.Clients.StartTLS(groups...).Wait()
		}
		passed = t.Network.EndClientLink()
	})
	slowest := map[int]time.Duration{}
	for merge, clients := range seen {
		for i := range all {
			name, of := all[i].name, clients[all[i].name]
			slowest[all[i].segments] = max(slowest[all[i].segments], of.Slowest)
			outcome.Attempted += of.Connections
			outcome.Broken += of.BrokenConnections()
			run.Result.Expect(len(of.Broken) == 0, "%s, GRO: %t: connection %d: %v", name, merge, of.Connections, of.Broken)
			run.Result.Expect(all[i].segments > segmentsRead || len(of.Servers) == 1 && of.Resumed == of.Answered()-1,
				"%s, GRO: %t: %d resumed, at %v", name, merge, of.Resumed, of.Servers)
		}
	}
	for segments, took := range slowest {
		run.Result.Measure(fmt.Sprintf("slowest_ms_%d_segments", segments), float64(took.Milliseconds()))
	}
	outcome.Completed = outcome.Attempted - outcome.Broken
	run.Result.AddTrial(outcome, false)
	for _, one := range all {
		met := passed[one.fault.Source]
		connections := 2 * (1 + resumesEach)
		run.Result.Expect(met.Connections >= connections && met.Segments == one.segments*met.Connections && met.Most == one.segments,
			"%s: %d connections had %d segments, at most %d", one.name, met.Connections, met.Segments, met.Most)
		run.Result.Expect(met.Lost == len(one.fault.Lost)*met.Connections && met.Doubled == len(one.fault.Doubled)*met.Connections &&
			met.Swapped == len(one.fault.Swapped)*met.Connections, "%s: %+v", one.name, met)
	}
}
