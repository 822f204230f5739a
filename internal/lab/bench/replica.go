package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/linux/lb"
)

// What replicated connections aim at.
const (
	ReplicaTargetNS    = 2000 // that a first packet takes longer for each replica
	ReplicaTargetBytes = 100  // of memory for each entry
	ReplicaLinear      = 0.85 // of the packets a second at the fewest load balancers, for each of more
)

// Least numbers whose results mean something.
const (
	DefaultReplicaRounds  = 15
	DefaultReplicaRepeat  = 50_000
	DefaultReplicaEntries = 10_000_000
)

// Most that there is room for.
const (
	MaxReplicaRepeat  = 500_000
	MaxReplicaEntries = 100_000_000
)

// Implementation constants
const (
	latencyNodes  = 4 // a chain of three, and one that is not in it; the paper's
	latencyPart   = 50
	minLatency    = 100
	loadLength    = 2 // of chains: the default
	maxNodes      = 6
	latencyChains = 3
	between       = 1024 // packets of others, between two of a connection: it has its answer by then
	samplesOfMost = 5
)

// The paper's (figures 11 to 13): packets of connections, and the parts of what chains of one carry that are offered.
var (
	lengths       = []int{5, 10, 20, 40, 80}
	loadedLengths = []int{10, 100}
	loads         = []float64{0.25, 0.5, 0.75}
)

// ReplicaOptions say how long to measure.
type ReplicaOptions struct {
	Rounds   int
	Repeat   uint32 // packets of a sample; where first packets are timed, a fiftieth of that many of these
	Entries  uint32 // to copy; 0: none
	Progress func(round, rounds int)
}

// ReplicaResult is what replicated connections cost.
type ReplicaResult struct {
	Latency []ReplicaLatency `json:"latency"`
	Loaded  []ReplicaLoaded  `json:"loaded"`
	Load    []ReplicaLoad    `json:"load"`
	Lengths []ReplicaLength  `json:"lengths"`
	Memory  []Memory         `json:"memory"`
	Copies  []*ReplicaCopy   `json:"copies,omitempty"`
}

// ReplicaLatency is how long a packet is on its way from a switch through load balancers and back to it, over pairs of veth devices, one packet at a time.
type ReplicaLatency struct {
	Chain   int     `json:"chain"` // load balancers that keep the connection, none of which has its packet; 0: it is known where the packet is
	Hops    int     `json:"hops"`  // load balancers that have the packet, one after the other
	P50NS   float64 `json:"p50_ns"`
	P99NS   float64 `json:"p99_ns"`
	EachNS  float64 `json:"each_ns,omitempty"` // p50 less that of a known connection, for each of the chain
	Packets uint64  `json:"packets"`
}

// ReplicaLoaded is how long a connection's first packet takes from when it is due, while others come at random times to all load balancers alike. None of
// them is in the chains of the connections whose packets it has.
type ReplicaLoaded struct {
	Packets   int     `json:"packets"` // of each connection
	Chain     int     `json:"chain"`
	Load      float64 `json:"load"`       // packets a second, of those that chains of one carry
	PerSecond float64 `json:"per_second"` // packets, at all load balancers together
	P50NS     float64 `json:"p50_ns"`     // the least of all rounds, as are the others
	P99NS     float64 `json:"p99_ns"`
	P999NS    float64 `json:"p999_ns"`
	First     uint64  `json:"first"` // packets that are timed
}

// ReplicaLength is the work of a packet of connections of so many, new ones and known ones alike.
type ReplicaLength struct {
	Packets  int     `json:"packets"`
	MinNS    float64 `json:"min_ns"` // CPU time for a packet
	MedianNS float64 `json:"median_ns"`
	Messages float64 `json:"messages"` // for a connection
	Ratio    float64 `json:"ratio"`    // of the packets a second, by the least times, to those of the shortest connections
}

// ReplicaLoad is the work of new connections that come to all load balancers alike, each with one packet: that of all of them, and of the switch.
type ReplicaLoad struct {
	Chain    int     `json:"chain"`
	Nodes    int     `json:"nodes"`
	MinNS    float64 `json:"min_ns"` // CPU time for a connection
	MedianNS float64 `json:"median_ns"`
	MaxNS    float64 `json:"max_ns"`
	Messages float64 `json:"messages"`  // for a connection
	PacketNS float64 `json:"packet_ns"` // of the median, for each packet that a load balancer handles: a message, or the client's
	// Of the packets that a load balancer handles a second, to that at the fewest load balancers: what does not grow with their number makes N of them
	// handle N times as many.
	Ratio       float64 `json:"ratio"`
	Connections uint64  `json:"connections"`
}

// RunReplica measures replicated connections. It takes about rounds * repeat * 200 us, and 15 us for each entry to copy.
func RunReplica(ctx context.Context, options ReplicaOptions) (*ReplicaResult, error) {
	r, err := openReplicaRig()
	if err != nil {
		return nil, err
	}
	result, err := r.run(ctx, &options)
	if err = errors.Join(err, r.close()); err != nil || options.Entries == 0 {
		return result, err
	}
	for _, c := range replicaCopies() {
		measured, err := c.run(ctx, options.Entries)
		if err != nil {
			return nil, fmt.Errorf("copy %d entries of %d load balancers: %w", options.Entries, c.Common, err)
		}
		result.Copies = append(result.Copies, measured)
	}
	return result, nil
}

// replicaCell collects the samples of one row.
type replicaCell struct {
	chain, nodes int       // chain 0: known connections
	length       int       // packets of a connection; 0: they come one at a time
	load         float64   // of what chains of one carry; 0: they come as fast as they can
	times        []float64 // ns
	p99, p999    []float64 // under load, of each round; times are the medians
	packets      uint64    // that were sent, or timed
	first        uint64    // of these, of new connections
	messages     uint64
}

func replicaCells() (all []*replicaCell) {
	for chain := range latencyChains + 1 {
		all = append(all, &replicaCell{chain: chain, nodes: latencyNodes})
	}
	for _, length := range loadedLengths {
		for _, load := range loads {
			for chain := 1; chain <= latencyChains; chain++ {
				all = append(all, &replicaCell{chain: chain, nodes: latencyNodes, length: length, load: load})
			}
		}
	}
	for _, chain := range []int{1, loadLength} {
		for nodes := chain; nodes <= maxNodes; nodes++ {
			all = append(all, &replicaCell{chain: chain, nodes: nodes, length: 1})
		}
	}
	for _, length := range lengths {
		all = append(all, &replicaCell{chain: loadLength, nodes: latencyNodes, length: length})
	}
	return all
}

// run takes one sample of every cell in each round.
func (r *replicaRig) run(ctx context.Context, options *ReplicaOptions) (*ReplicaResult, error) {
	all := replicaCells()
	order := slices.Clone(all)
	for round := range options.Rounds {
		if options.Progress != nil {
			options.Progress(round+1, options.Rounds)
		}
		for _, c := range order {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if err := r.sample(c, options.Repeat); err != nil {
				return nil, fmt.Errorf("measure chains of %d on %d load balancers: %w", c.chain, c.nodes, err)
			}
		}
		slices.Reverse(order)
	}
	result := r.result(all)
	var err error
	result.Memory, err = r.memory()
	return result, err
}

func (r *replicaRig) sample(c *replicaCell, connections uint32) error {
	if c.load > 0 {
		if err := r.findMost(c.length, connections); err != nil {
			return err
		}
	}
	if err := r.ring(c.nodes, max(1, c.chain)); err != nil {
		return err
	}
	timed := max(minLatency, connections/latencyPart)
	switch {
	case c.length == 0:
		return r.sampleLatency(c, timed)
	case c.load > 0:
		return r.sampleLoaded(c, timed)
	}
	return r.sampleLoad(c, connections)
}

// sampleLatency sends one packet after the other to the first load balancer, of connections whose chains it is not in.
func (r *replicaRig) sampleLatency(c *replicaCell, packets uint32) error {
	flows := r.elsewhere(packets, 1)
	all := uint64(packets)
	want := wanted{first: all, asked: all, passed: all * uint64(max(1, c.chain))}
	crossing, err := r.cross(flows, wrapper.Pace{Ports: 1, Alone: true})
	if c.chain == 0 && err == nil { // that was asked about; once more
		want.known = all
		crossing, err = r.cross(flows, wrapper.Pace{Ports: 1, Alone: true})
	}
	if err != nil {
		return err
	}
	times, err := r.times(crossing.Sent, 1)
	c.times, c.packets = append(c.times, times...), c.packets+uint64(len(times))
	return errors.Join(err, r.check(want))
}

// sampleLoaded sends packets at random times to all load balancers alike, and times the first ones of so many connections.
func (r *replicaRig) sampleLoaded(c *replicaCell, connections uint32) error {
	turns, want, err := r.turns(c, connections*uint32(c.length))
	if err != nil {
		return err
	}
	crossing, err := r.cross(turns, wrapper.Pace{Ports: uint32(c.nodes), Mean: time.Duration(r.carried[c.length] / c.load)})
	if err != nil {
		return err
	}
	times, err := r.times(crossing.Sent, c.length)
	if err = errors.Join(err, r.check(want)); err != nil {
		return err
	}
	c.times, c.packets = append(c.times, percentile(times, 50)), c.packets+uint64(len(times))
	c.p99, c.p999 = append(c.p99, percentile(times, 99)), append(c.p999, percentile(times, 99.9))
	return nil
}

// findMost measures, once, what chains of one carry: chains of all lengths are offered parts of that.
func (r *replicaRig) findMost(length int, packets uint32) error {
	if r.carried[length] != 0 {
		return nil
	}
	most := &replicaCell{chain: 1, nodes: latencyNodes, length: length}
	for range samplesOfMost {
		if err := r.sample(most, packets); err != nil {
			return err
		}
	}
	r.carried[length] = spreadOf(most.times).median
	return nil
}

// times are those of each so many-th of the frames that were sent, from the first.
func (r *replicaRig) times(sent uint64, each int) (times []float64, err error) {
	took, err := r.programs.Took(sent)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(took); i += each {
		if took[i] != 0 {
			times = append(times, float64(took[i]))
		}
	}
	if len(times) == 0 {
		return nil, fmt.Errorf("the kernel handled all of %d packets in other threads' time: measure on a quieter machine", sent)
	}
	return times, nil
}

// turns are packets of connections as long as the cell says, by their flows: of each so many the first is that of a new connection, and the others are later
// ones of connections before it, the first of which exist already. want is what becomes of them.
func (r *replicaRig) turns(c *replicaCell, packets uint32) (turns []uint32, want wanted, err error) {
	connections := (int(packets) + c.length - 1) / c.length
	stride := (between + c.length - 1) / c.length // connections from one packet of a connection to its next
	older := (c.length - 1) * stride
	pick := r.fresh
	if c.load > 0 {
		pick = func(count uint32) []uint32 { return r.elsewhere(count, uint32(c.nodes)) }
	}
	flows := pick(uint32(older + connections))
	if older > 0 {
		if _, err := r.cross(flows[:older], wrapper.Pace{Ports: uint32(c.nodes)}); err != nil {
			return nil, want, err
		}
		if r.counted, err = r.counters(); err != nil {
			return nil, want, err
		}
	}
	for i := older; i < len(flows); i++ {
		for turn := range c.length {
			turns = append(turns, flows[i-turn*stride])
		}
		if messages := uint64(r.messages(flows[i], uint32(c.nodes))); messages > 0 {
			want.asked, want.passed = want.asked+1, want.passed+messages-1
		}
	}
	want.first = uint64(connections)
	want.known = uint64(len(turns)) - want.first
	return turns, want, nil
}

// sampleLoad sends packets to all load balancers alike, as fast as they go.
func (r *replicaRig) sampleLoad(c *replicaCell, packets uint32) error {
	for range crossings {
		turns, want, err := r.turns(c, packets)
		if err != nil {
			return err
		}
		crossing, err := r.cross(turns, wrapper.Pace{Ports: uint32(c.nodes)})
		if err != nil {
			return err
		}
		if err := r.check(want); err != nil {
			return err
		}
		if crossing.Elsewhere*elsewherePart <= crossing.Sent {
			c.times = append(c.times, float64(crossing.CPU.Nanoseconds())/float64(crossing.Sent))
			c.packets, c.first, c.messages = c.packets+crossing.Sent, c.first+want.first, c.messages+want.asked+want.passed
			return nil
		}
		if err := r.forget(); err != nil {
			return err
		}
	}
	return fmt.Errorf("the kernel handled frames in other threads' time %d times: measure on a quieter machine, or with a lower --repeat", crossings)
}

func (r *replicaRig) result(all []*replicaCell) *ReplicaResult {
	result := &ReplicaResult{}
	known := 0.0
	least := map[int]float64{}
	for _, c := range all {
		spread := spreadOf(c.times)
		if c.length == 0 {
			row := ReplicaLatency{Chain: c.chain, Hops: 1, P50NS: spread.median, P99NS: percentile(c.times, 99), Packets: c.packets}
			if c.chain == 0 {
				known = row.P50NS
			} else {
				row.Hops, row.EachNS = c.chain+2, (row.P50NS-known)/float64(c.chain)
			}
			result.Latency = append(result.Latency, row)
			continue
		}
		if c.load > 0 {
			result.Loaded = append(result.Loaded, ReplicaLoaded{Packets: c.length, Chain: c.chain, Load: c.load, PerSecond: 1e9 * c.load / r.carried[c.length],
				P50NS: spread.min, P99NS: slices.Min(c.p99), P999NS: slices.Min(c.p999), First: c.packets})
			continue
		}
		messages := float64(c.messages) / float64(c.first)
		if c.length > 1 {
			row := ReplicaLength{Packets: c.length, MinNS: spread.min, MedianNS: spread.median, Messages: messages, Ratio: 1}
			if len(result.Lengths) > 0 {
				row.Ratio = result.Lengths[0].MinNS / row.MinNS
			}
			result.Lengths = append(result.Lengths, row)
			continue
		}
		row := ReplicaLoad{Chain: c.chain, Nodes: c.nodes, MinNS: spread.min, MedianNS: spread.median, MaxNS: spread.max, Messages: messages, Connections: c.packets}
		if row.PacketNS = row.MedianNS / (1 + row.Messages); least[c.chain] == 0 {
			least[c.chain] = row.PacketNS
		}
		row.Ratio = least[c.chain] / row.PacketNS
		result.Load = append(result.Load, row)
	}
	return result
}

func (r *replicaRig) memory() ([]Memory, error) {
	maps, err := r.nodes[0].lb.BenchMemory(lb.BenchReplicas)
	var all []Memory
	for _, m := range maps {
		m.Entries = uint32(r.nodes[0].lb.ReplicaCapacity())
		m.BytesPerEntry = float64(m.Bytes) / float64(m.Entries)
		all = append(all, Memory{Table: "replicated", BenchMemory: m})
	}
	return all, err
}
