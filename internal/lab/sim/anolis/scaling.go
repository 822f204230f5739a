package anolis

import (
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// What is fitted to the paper: our machines have no nanoseconds of their own.
const (
	hopMicros    = 10   // a message from node to node: 15 us a replica, and two more replicas take three more hops
	nodeMpps     = 1.65 // packets and messages that a node handles: 14 nodes open 1.95 million connections/s with L = 1 (6.4)
	forwardMpps  = 4    // packets of long flows that a node forwards (1)
	messageCosts = 8.6  // packets that a node could have forwarded instead of handling a message: 4 Mpps of 4 nodes at 10 packets a flow (6.3)
)

const (
	scalingFlows   = 20_000 // in each measurement
	packetsPerFlow = 10
	placements     = 4   // of random node ids, for each measurement
	ringSamples    = 400 // of random node ids, where only their shares matter
)

func scaling() sim.Experiment {
	e := sim.Experiment{
		Name:   "anolis-scaling",
		Title:  "What replication costs, and what more nodes bring",
		Source: "Anolis 6.2 to 6.4, figures 11 to 14",
		Method: "Flows of 10 packets, evenly at 4 to 14 nodes; throughput is that at which the busiest node is always busy. Fitted to the paper: 10 us a hop, 1.65 " +
			"million packets and messages/s a node; for the packets per flow 4 million/s and a message like 8.6 packets.",
		Figures: []sim.Figure{
			{Name: "throughput", Title: "Throughput, flows of 10 packets (figure 14a)", X: "nodes", Y: "Mpps a node"},
			{Name: "connections", Title: "New connections (figure 14b)", X: "nodes", Y: "million/s"},
			{Name: "ppf", Title: "Packets per flow, 4 nodes, L = 2 (figure 13)", X: "packets per flow", Y: "Mpps", LogX: true},
			{Name: "ring", Title: "Balance of the ring", X: "nodes", Y: "largest share / mean"},
		},
		Run: func(run *sim.Run) {
			total := int64(len(sizes) * 3 * (1 + placements))
			s := scale{run: run, total: total, ids: random.New(run.Seed, "node ids"), keys: random.New(run.Seed, "keys")}
			s.first()
			s.balance()
			s.throughput()
		},
		Claims: []sim.Claim{
			{ID: "messages-2", What: "messages between nodes for a new connection, 4 nodes, L = 2", Paper: "3", Low: 3.4, High: 3.6, Known: true,
				Note: "Tested by counting what the nodes send: a question, two writes and an answer are four, less those of a node to itself; the paper's three leave one of " +
					"them out. Ballast sends the first packet to the head instead of the tail: 2.5."},
			{ID: "messages-2-direct", What: "the same when the first message goes to the head", Low: 2.4, High: 2.6},
			{ID: "latency", What: "first packet: more for each replica", Unit: "us", Paper: "15", Low: 14, High: 16, Fitted: true,
				Note: "10 us a hop are chosen for this."},
			{ID: "latency-direct", What: "the same when the first message goes to the head", Unit: "us", Low: 9, High: 11},
		},
	}
	for chain := 1; chain <= 3; chain++ {
		e.Claims = append(e.Claims, sim.Claim{ID: fmt.Sprintf("linear-%d", chain), Unit: "%", Paper: "near-linear", Low: 95, High: 101,
			What: fmt.Sprintf("throughput of 14 nodes by 3.5 times that of 4, even ids, L = %d", chain)})
	}
	e.Claims = append(e.Claims,
		sim.Claim{ID: "lost-even", What: "throughput of a node lost from 4 to 14 nodes, even ids, worst L", Unit: "Mpps", Low: 0, High: 0.1},
		sim.Claim{ID: "lost-random", What: "throughput of a node lost from 4 to 14 nodes, random ids, worst L", Unit: "Mpps", Paper: "up to 0.2", Low: 0.05, High: 0.3},
		sim.Claim{ID: "connections", What: "new connections of 14 nodes, L = 1, even ids", Unit: "million/s", Paper: "1.95", Low: 1.8, High: 2.1, Fitted: true,
			Note: "1.65 million packets and messages/s a node are chosen for this; that growth is linear is a result."},
		sim.Claim{ID: "ppf", What: "throughput at 80 packets per flow by that at 5", Unit: "x", Paper: "7", Low: 4.8, High: 5.4, Known: true,
			Note: "Tested by the cost of a message: 15 packets instead of 8.6 give 7, and 2.5 Mpps at 10 packets per flow where the paper has 4."},
		sim.Claim{ID: "ring-random-4", What: "largest share of 4 nodes with random ids by the mean", Unit: "x", Low: 1.9, High: 2.3},
		sim.Claim{ID: "ring-random-14", What: "the same of 14 nodes", Unit: "x", Low: 3, High: 3.5},
		sim.Claim{ID: "ring-even", What: "ours, grown from 4 to 14 nodes one by one and back: the worst", Unit: "x", Low: 1, High: 1.1},
		sim.Claim{ID: "ring-keys", What: "ours, connections of the busiest tail of 14 by the mean", Unit: "x", Low: 1, High: 1.1},
	)
	return e
}

// sizes are numbers of nodes (figure 14).
var sizes = []int{4, 6, 8, 10, 12, 14}

// scale is one run of the experiment.
type scale struct {
	run         *sim.Run
	done, total int64
	ids, keys   random.Stream
}

// cluster is some nodes whose messages arrive at once.
type cluster struct {
	config   replica.Config
	nodes    []*replica.Node // by number, from 1
	messages []replica.Message
	sent     int   // messages from node to node, less those of the controller
	handled  []int // packets and messages, by node
}

// newCluster makes one of nodes with ids as given, or of count nodes with even ones.
func newCluster(config replica.Config, count int, ids []ring.Member) *cluster {
	c := &cluster{config: config, nodes: make([]*replica.Node, count+1), handled: make([]int, count+1)}
	c.config.EvenTo = 0
	change := replica.Change{AddAt: ids}
	for id := uint16(1); int(id) <= count; id++ {
		c.nodes[id] = replica.NewNode(id, &c.config)
		if ids == nil {
			change.Add = append(change.Add, id)
		}
	}
	controller := replica.NewController(&c.config, replica.State{})
	actions, err := controller.Change(change)
	if err != nil {
		panic(err) // the experiment asks for what is impossible
	}
	c.take(actions)
	for len(c.messages) > 0 {
		m := c.messages[0]
		c.messages = c.messages[1:]
		if m.To == replica.None {
			c.take(controller.Receive(m))
		} else {
			c.take(c.nodes[m.To].Receive(m))
		}
	}
	c.sent = 0
	return c
}

func (c *cluster) take(actions []replica.Action) {
	for i := range actions {
		if actions[i].Kind == replica.Send {
			c.messages = append(c.messages, actions[i].Message)
			c.sent++
		}
	}
}

// flow opens a connection at a node. Its first packet is answered when flow returns; all others are forwarded by this node alone.
func (c *cluster) flow(forwarder int, key ring.Key, packets int) {
	c.handled[forwarder] += packets
	c.take(c.nodes[forwarder].Packet(key, 1, true))
	for len(c.messages) > 0 {
		m := c.messages[len(c.messages)-1]
		c.messages = c.messages[:len(c.messages)-1]
		c.handled[m.To]++
		c.take(c.nodes[m.To].Receive(m))
	}
}

// measure opens connections, equally many at each node.
func (s *scale) measure(c *cluster) {
	for i := range scalingFlows {
		c.flow(1+i%(len(c.nodes)-1), ring.Key(s.keys.Uint64()), packetsPerFlow)
	}
}

// perNode returns how many million packets from outside a node forwards in a second when the busiest handles all it can.
func (c *cluster) perNode() float64 {
	packets := scalingFlows * packetsPerFlow / float64(len(c.nodes)-1)
	return nodeMpps * packets / float64(slices.Max(c.handled))
}

// first tells what the first packet of a flow costs with four nodes.
func (s *scale) first() {
	hops := func(chain int, direct bool) float64 {
		config := replica.DefaultConfig(chain)
		config.DirectToHead = direct
		c := newCluster(config, 4, nil)
		s.measure(c)
		return float64(c.sent) / scalingFlows // one after the other
	}
	two := hops(2, false)
	s.run.Value("messages-2", two)
	s.run.Value("messages-2-direct", hops(2, true))
	s.run.Value("latency", hopMicros*(hops(3, false)-hops(1, false))/2)
	s.run.Value("latency-direct", hopMicros*(hops(3, true)-hops(1, true))/2)
	mpps := func(packets float64) float64 { return 4 * forwardMpps * packets / (packets + two*messageCosts) }
	paper := []float64{2, 4, 8, 10, 14}
	for i, packets := range []float64{5, 10, 20, 40, 80} {
		s.run.Point("ppf/ours", packets, mpps(packets))
		s.run.Point("ppf/paper: at least", packets, paper[i])
	}
	s.run.Value("ppf", mpps(80)/mpps(5))
}

// throughput tells how throughput grows with nodes.
func (s *scale) throughput() {
	worstEven, worstRandom := 0.0, 0.0
	for chain := 1; chain <= 3; chain++ {
		even, uneven := make([]float64, len(sizes)), make([]float64, len(sizes))
		for i, n := range sizes {
			even[i] = s.throughputOf(n, chain, nil)
			for range placements {
				uneven[i] += s.throughputOf(n, chain, s.placement(n)) / placements
			}
			s.run.Point(fmt.Sprintf("throughput/L = %d", chain), float64(n), even[i])
			s.run.Point(fmt.Sprintf("throughput/L = %d, random ids", chain), float64(n), uneven[i])
			s.run.Point(fmt.Sprintf("connections/L = %d", chain), float64(n), even[i]*float64(n)/packetsPerFlow)
			s.done += 1 + placements
			s.run.Progress(s.done, s.total)
		}
		last := len(sizes) - 1
		s.run.Value(fmt.Sprintf("linear-%d", chain), 100*even[last]/even[0])
		worstEven = max(worstEven, even[0]-even[last])
		worstRandom = max(worstRandom, uneven[0]-uneven[last])
		if chain == 1 {
			s.run.Value("connections", even[last]*float64(sizes[last])/packetsPerFlow)
		}
	}
	s.run.Value("lost-even", worstEven)
	s.run.Value("lost-random", worstRandom)
}

func (s *scale) throughputOf(nodes, chain int, ids []ring.Member) float64 {
	c := newCluster(replica.DefaultConfig(chain), nodes, ids)
	s.measure(c)
	return c.perNode()
}

// placement returns nodes with random ids.
func (s *scale) placement(nodes int) (list ring.List) {
	for id := uint16(1); int(id) <= nodes; id++ {
		list = list.AddAt(ring.Member{Node: id, At: ring.Position(s.ids.Uint64() >> 32)})
	}
	return list
}

// balance tells how even the shares of nodes are.
func (s *scale) balance() {
	for _, n := range sizes {
		sum := 0.0
		for range ringSamples {
			sum += s.placement(n).Imbalance()
		}
		s.run.Point("ring/random ids", float64(n), sum/ringSamples)
		if n == 4 || n == 14 {
			s.run.Value(fmt.Sprintf("ring-random-%d", n), sum/ringSamples)
		}
	}
	list, worst := ring.Even([]uint16{1, 2, 3, 4}, 1), 1.0
	evenTo := replica.DefaultConfig(1).EvenTo
	change := func(next ring.List) {
		for moved := next.Imbalance() > evenTo; moved; {
			next, moved = next.Level()
		}
		list, worst = next, max(worst, next.Imbalance())
	}
	for id := uint16(5); id <= 14; id++ {
		change(list.Add(id, 1))
		s.run.Point("ring/ours", float64(len(list)), list.Imbalance())
	}
	s.run.Value("ring-keys", s.busiestTail(list))
	for len(list) > 4 {
		change(list.Remove(list[s.ids.Intn(len(list))].Node))
	}
	s.run.Value("ring-even", worst)
}

// busiestTail returns how many more connections than the mean the busiest tail has.
func (s *scale) busiestTail(list ring.List) float64 {
	const keys = 200_000
	counts := make([]int, len(list))
	for range keys {
		counts[list.Arc(ring.Key(s.keys.Uint64()).Position())]++
	}
	return float64(slices.Max(counts)) * float64(len(list)) / keys
}
