package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	latencyNodes  = 4 // a chain of three, and one that is not in it
	latencyPart   = 50
	minLatency    = 100
	loadLength    = 2 // of chains: the default
	maxNodes      = 6
	latencyChains = 3
)

// ReplicaOptions say how long to measure.
type ReplicaOptions struct {
	Rounds   int
	Repeat   uint32 // connections of a sample; a fiftieth of that many first packets are timed one by one
	Entries  uint32 // to copy; 0: none
	Progress func(round, rounds int)
}

// ReplicaResult is what replicated connections cost.
type ReplicaResult struct {
	Latency []ReplicaLatency `json:"latency"`
	Load    []ReplicaLoad    `json:"load"`
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

// RunReplica measures replicated connections. It takes about rounds * repeat * 60 us, and 15 us for each entry to copy.
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
	latency      bool      // one packet at a time
	times        []float64 // ns
	packets      uint64
	messages     uint64
}

func replicaCells() (all []*replicaCell) {
	for chain := range latencyChains + 1 {
		all = append(all, &replicaCell{chain: chain, nodes: latencyNodes, latency: true})
	}
	for _, chain := range []int{1, loadLength} {
		for nodes := chain; nodes <= maxNodes; nodes++ {
			all = append(all, &replicaCell{chain: chain, nodes: nodes})
		}
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
	result := replicaResult(all)
	var err error
	result.Memory, err = r.memory()
	return result, err
}

func (r *replicaRig) sample(c *replicaCell, connections uint32) error {
	if err := r.ring(c.nodes, max(1, c.chain)); err != nil {
		return err
	}
	if c.latency {
		return r.sampleLatency(c, min(wrapper.Timed, max(minLatency, connections/latencyPart)))
	}
	return r.sampleLoad(c, connections)
}

// sampleLatency sends one packet after the other to the first load balancer, of connections whose chains it is not in.
func (r *replicaRig) sampleLatency(c *replicaCell, packets uint32) error {
	flows := make([]uint32, packets)
	for i := range flows {
		flows[i] = r.flowElsewhere()
	}
	all := uint64(packets)
	want := wanted{first: all, asked: all, passed: all * uint64(max(1, c.chain))}
	took, err := r.time(flows)
	if c.chain == 0 && err == nil { // that was asked about; once more
		want.known = all
		took, err = r.time(flows)
	}
	if err != nil {
		return err
	}
	for _, ns := range took {
		if ns != 0 {
			c.times = append(c.times, float64(ns))
			c.packets++
		}
	}
	if len(c.times) == 0 {
		return fmt.Errorf("the kernel handled all of %d packets in other threads' time: measure on a quieter machine", packets)
	}
	return r.check(want)
}

// sampleLoad sends the first packets of new connections to all load balancers alike.
func (r *replicaRig) sampleLoad(c *replicaCell, connections uint32) error {
	for range crossings {
		flows := r.fresh(2 * connections) // more are sent than wanted
		crossing, err := r.cross(flows, connections, uint32(c.nodes))
		if err != nil {
			return err
		}
		want := wanted{first: crossing.Sent}
		for _, flow := range flows[:crossing.Sent] {
			if messages := uint64(r.messages(flow, c.nodes)); messages > 0 {
				want.asked, want.passed = want.asked+1, want.passed+messages-1
			}
		}
		if err := r.check(want); err != nil {
			return err
		}
		if crossing.Elsewhere*elsewherePart <= crossing.Sent {
			c.times = append(c.times, float64(crossing.CPU.Nanoseconds())/float64(crossing.Sent))
			c.packets, c.messages = c.packets+crossing.Sent, c.messages+want.asked+want.passed
			return nil
		}
		if err := r.forget(); err != nil {
			return err
		}
	}
	return fmt.Errorf("the kernel handled frames in other threads' time %d times: measure on a quieter machine, or with a lower --repeat", crossings)
}

func replicaResult(all []*replicaCell) *ReplicaResult {
	result := &ReplicaResult{}
	known := 0.0
	least := map[int]float64{}
	for _, c := range all {
		spread := spreadOf(c.times)
		if c.latency {
			row := ReplicaLatency{Chain: c.chain, Hops: 1, P50NS: spread.median, P99NS: percentile(c.times, 99), Packets: c.packets}
			if c.chain == 0 {
				known = row.P50NS
			} else {
				row.Hops, row.EachNS = c.chain+2, (row.P50NS-known)/float64(c.chain)
			}
			result.Latency = append(result.Latency, row)
			continue
		}
		row := ReplicaLoad{Chain: c.chain, Nodes: c.nodes, MinNS: spread.min, MedianNS: spread.median, MaxNS: spread.max,
			Messages: float64(c.messages) / float64(c.packets), Connections: c.packets}
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
