package spotlight

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/model"
)

// Specification constants (Spotlight VI-B3).
const (
	controlClasses       = 4
	controlIntervalNS    = 250 * millisecond
	controlLoadBalancers = 50
	controlPacket        = 64 // bytes; each has one weight
)

// Implementation constants: what goes around one update on its way.
const (
	reportedWhole  = 8       // every so many updates name all weights, as the controller's do
	messageFraming = 5 + 9   // gRPC, HTTP/2
	recordFraming  = 5 + 17  // TLS 1.3: header; content type and tag
	packetHeaders  = 14 + 52 // Ethernet, IPv4, TCP with timestamps
	segmentBytes   = 1448
)

// paperPool is one service as large as that of section VI-B3, with as many flows for each instance as in VI-A.
var paperPool = setup{traffic: synthesized(1, 375_000, 160e3), instances: 1000, overload: paper.overload, warmNS: 20e9}

// tally counts what updates of weights would be sent.
type tally struct {
	before    []model.Share
	skip      int64 // updates that are too early to count
	updates   int64
	changed   int64 // weights
	sentBytes int64 // to one load balancer
}

// take is told the weights of one update after the other.
func (t *tally) take(shares []model.Share) {
	var ids []uint16
	changed := 0
	whole := t.updates%reportedWhole == 0 || t.before == nil
	for i, share := range shares {
		differs := t.before == nil || t.before[i] != share
		if differs {
			changed++
		}
		if differs || whole {
			ids = append(ids, share.ID)
		}
	}
	t.before = shares
	if t.skip > 0 {
		t.skip--
		return
	}
	t.updates++
	t.changed += int64(changed)
	if len(ids) > 0 {
		t.sentBytes += int64(sentBytes(updateBytes("web", uint64(t.updates), whole, ids)))
	}
}

// updateBytes is the size of a ToNode message with the weights of the given servers, in the first term: internal/api/ballastv1/ballast.proto.
// Weights are below 128.
func updateBytes(service string, version uint64, whole bool, ids []uint16) int {
	tag := protowire.SizeTag(1) // those of all fields below 16 have one size
	packed := 0
	for _, id := range ids {
		packed += protowire.SizeVarint(uint64(id))
	}
	bytes := tag + protowire.SizeBytes(len(service)) + tag + protowire.SizeVarint(1) + tag + protowire.SizeVarint(version) +
		tag + protowire.SizeBytes(packed) + tag + protowire.SizeBytes(len(ids))
	if whole {
		bytes += tag + 1
	}
	return tag + protowire.SizeBytes(bytes)
}

// sentBytes is the size of a message on a wire, as if nothing else shared its packets.
func sentBytes(message int) int {
	stream := message + messageFraming + recordFraming
	return stream + (stream+segmentBytes-1)/segmentBytes*packetHeaders
}

func controlTraffic(s setup) sim.Experiment {
	return sim.Experiment{
		Name: "spotlight-control", Source: source("section VI-B3"),
		Title: "traffic from the controller to load balancers: 1000 servers, 50 load balancers, m = 4, updates every 250 ms",
		Method: "The paper: a packet of 64 bytes for every server and load balancer. Ours: one message per load balancer with the weights that have changed, every " +
			"eighth with all, headers included. Changes are those of figure 8 (62 flows a server). `ballast-lab bench control` measures a real controller.",
		Claims: []sim.Claim{
			{ID: "paper", What: "256 n l", Unit: "MB/s", Paper: "12.8 MB/s", Low: 12.79, High: 12.81, Fitted: true, Note: "A product of the paper's four constants."},
			{ID: "changed", What: "weights that change from one update to the next", Unit: "%", Paper: "a small value", Low: 25, High: 45, Known: true,
				Note: "Not known: the paper does not say of what traffic it speaks. Here loads of 62 flows move a third of the servers to another weight in 250 ms."},
			{ID: "entries", What: "entries of the tables to update: m + 2x for x changed weights", Paper: "m + 2x", Low: 500, High: 900, Fitted: true,
				Note: "The paper's formula, with our x."},
			{ID: "ours", What: "our encoding", Unit: "MB/s", Low: 0.05, High: 0.5},
			{ID: "part", What: "our encoding, as part of 256 n l", Unit: "%", Low: 0, High: 4},
		},
		Run: func(run *sim.Run) {
			t := &tally{skip: s.warmNS / controlIntervalNS}
			p := adaptive(controlClasses, controlIntervalNS)
			weigh := p.weigh
			p.weigh = func(left []awfd.Available) []model.Share {
				shares := weigh(left)
				t.take(shares)
				return shares
			}
			s.arena(run, 1).omega(p)
			const perSecond = 1e9 / float64(controlIntervalNS)
			theirs := controlPacket * perSecond * float64(s.instances*controlLoadBalancers)
			ours := perSecond * controlLoadBalancers * float64(t.sentBytes) / float64(t.updates)
			changed := float64(t.changed) / float64(t.updates)
			run.Value("paper", theirs/1e6)
			run.Value("changed", 100*changed/float64(s.instances))
			run.Value("entries", controlClasses+2*changed)
			run.Value("ours", ours/1e6)
			run.Value("part", 100*ours/theirs)
		},
	}
}
