package anolis

import (
	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/event"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// Implementation constants: payloads of events. Those below firstMessage are connections.
const (
	firstMessage = 1 << 30
	arrival      = 1<<31 + iota
	retry
	failure
	detection
	addition
	firstPeriod // of the node whose number is added
)

// parameters are what a world is made of. Times are in ns.
type parameters struct {
	chain       int
	rate        int64      // connections a second
	busy        [][2]int64 // when connections arrive
	packets     uint8      // that a client sends on each connection
	gap         int64      // between them, at least; a packet that has not arrived by then is sent again
	gapMore     float64    // mean of what is added to gap
	hop         int64      // what a message takes from node to node, at least
	hopMore     float64
	control     int64 // the same for views and syncs
	controlMore float64
	loss        float64 // share of messages between nodes, and of those of the controller
	retry       int64   // how often unanswered messages are sent again
	period      int64   // deletion interval
	dies        int64   // when nodes 1 and 3 fail
	detected    int64   // when gateway and controller know
	returns     int64   // when two nodes are added where those were
}

// connection is a connection of a client.
type connection struct {
	server    uint8 // that its first packet came to; 0: none yet
	sent      uint8
	delivered uint8
	broken    bool // another server has had a packet of it
}

// world is four nodes with their controller, a gateway that spreads connections over them by hash, clients and servers.
type world struct {
	parameters
	run         *sim.Run
	before, all int64 // connections of the run, in earlier worlds and together
	config      replica.Config
	controller  *replica.Controller
	nodes       [7]*replica.Node // by number; nil: dead, or not there yet
	gateway     []uint16         // where packets go, by hash
	positions   [2]ring.Position // of the nodes that fail
	queue       *event.Queue
	now         int64
	messages    []replica.Message // on their way
	free        []uint32          // of messages
	connections []connection
	open        int // connections that have packets to come
	broken      int
	brokenAt    []int // by second
	changedAt   int64
	synced      [2]float64 // seconds that the changes took until all was synced
	changes     int

	losses, delays random.Stream
	gaps, hashes   random.Key
	proposals      random.Key
}

const servers = 4

func newWorld(run *sim.Run, p parameters) *world {
	w := &world{
		parameters: p, run: run, queue: event.New(1000), config: replica.DefaultConfig(p.chain),
		losses: random.New(run.Seed, "losses"), delays: random.New(run.Seed, "delays"),
		gaps: random.Keyed(run.Seed, "gaps"), hashes: random.Keyed(run.Seed, "keys"), proposals: random.Keyed(run.Seed, "servers"),
	}
	w.config.Timeout = 2 // the keep-alive interval: no connection is silent for longer
	w.controller = replica.NewController(&w.config, replica.State{})
	w.gateway = []uint16{1, 2, 3, 4}
	for _, id := range w.gateway {
		w.start(id, int64(id)*p.period/8)
	}
	w.changeNodes(replica.Change{Add: w.gateway})
	for i, id := range [...]uint16{1, 3} {
		member, _ := w.controller.List().Find(id)
		w.positions[i] = member.At
	}
	w.queue.Push(p.retry, retry)
	w.queue.Push(p.busy[0][0]+20e6, arrival) // when all nodes have the first view
	w.queue.Push(p.dies, failure)
	w.queue.Push(p.detected, detection)
	w.queue.Push(p.returns, addition)
	return w
}

// start starts a node whose first period ends at a time.
func (w *world) start(id uint16, periodEnds int64) {
	w.nodes[id] = replica.NewNode(id, &w.config)
	w.queue.Push(periodEnds, firstPeriod+uint32(id))
}

// simulate runs until every connection has ended, or an unreasonable time after the last came.
func (w *world) simulate() {
	end := w.busy[len(w.busy)-1][1]
	for count := 0; ; count++ {
		at, payload, _ := w.queue.Pop() // retries go on for ever
		if w.now = at; w.now > end && (w.open == 0 || w.now > end+60e9) {
			return
		}
		if count&0xffff == 0 {
			w.run.Progress(w.before+int64(len(w.connections)), w.all)
		}
		w.happens(payload)
	}
}

// expected returns how many connections there will be.
func (w *world) expected() (connections int64) {
	for _, interval := range w.busy {
		connections += (interval[1] - interval[0]) * w.rate / 1e9
	}
	return connections
}

func (w *world) happens(payload uint32) {
	switch {
	case payload < firstMessage:
		w.packet(payload)
	case payload < arrival:
		m := w.messages[payload-firstMessage]
		w.free = append(w.free, payload-firstMessage)
		w.deliver(m)
	case payload == arrival:
		w.arrive()
	case payload == retry:
		w.retryAll()
	case payload == failure:
		w.nodes[1], w.nodes[3] = nil, nil
	case payload == detection:
		w.gateway = []uint16{2, 4}
		w.changeNodes(replica.Change{Fail: []uint16{1, 3}})
	case payload == addition:
		w.add()
	default:
		if node := w.nodes[payload-firstPeriod]; node != nil {
			node.NextPeriod()
			w.queue.Push(w.now+w.period, payload)
		}
	}
}

// add adds two nodes where two have failed.
func (w *world) add() {
	w.gateway = []uint16{5, 2, 6, 4}
	w.start(5, w.now+w.period/3)
	w.start(6, w.now+w.period/2)
	w.changeNodes(replica.Change{AddAt: []ring.Member{{Node: 5, At: w.positions[0]}, {Node: 6, At: w.positions[1]}}})
}

func (w *world) changeNodes(change replica.Change) {
	actions, err := w.controller.Change(change)
	if err != nil {
		panic(err) // the experiment asks for what is impossible
	}
	w.changedAt = w.now
	w.take(actions)
}

// arrive opens a connection, and says when the next comes.
func (w *world) arrive() {
	id := uint32(len(w.connections))
	w.connections = append(w.connections, connection{})
	w.open++
	w.packet(id)
	next := w.now + 1e9/w.rate
	for i, interval := range w.busy {
		if next < interval[1] {
			w.queue.Push(max(next, interval[0]), arrival)
			return
		}
		if i == len(w.busy)-1 {
			return
		}
	}
}

// key returns the key of a connection: random, but for its number, which the lower half is.
func (w *world) key(id uint32) ring.Key {
	return ring.Key(w.hashes.At(uint64(id))<<32 | uint64(id))
}

// packet sends the next packet of a connection, or the last one again when it is lost.
func (w *world) packet(id uint32) {
	c := &w.connections[id]
	if c.delivered == c.sent {
		if c.sent == w.packets {
			w.open--
			return
		}
		c.sent++
	}
	number := uint64(id)<<8 | uint64(c.sent)
	w.queue.Push(w.now+w.gap+int64(w.gaps.ExpAt(number, w.gapMore)), id)
	hash := w.hashes.At(uint64(id)) >> 32
	forwarder := w.gateway[hash%uint64(len(w.gateway))]
	if node := w.nodes[forwarder]; node != nil {
		proposed := 1 + random.Below(w.proposals.At(number), servers)
		w.take(node.Packet(w.key(id), replica.Owner(proposed), true))
	}
}

func (w *world) deliver(m replica.Message) {
	if m.To != replica.None {
		if node := w.nodes[m.To]; node != nil {
			w.take(node.Receive(m))
		}
		return
	}
	before := w.controller.Phase()
	w.take(w.controller.Receive(m))
	if before != replica.Synced && w.controller.Phase() == replica.Synced {
		if w.changes > 0 { // the first is how all begins
			w.synced[w.changes-1] = float64(w.now-w.changedAt) / 1e9
		}
		w.changes++
	}
}

func (w *world) take(actions []replica.Action) {
	for i := range actions {
		switch m := &actions[i].Message; actions[i].Kind {
		case replica.Send:
			w.send(m)
		case replica.Forward:
			w.arrived(uint32(m.Key), uint8(m.Owner))
		}
	}
}

// send puts a message on its way, or loses it.
func (w *world) send(m *replica.Message) {
	if w.losses.Float64() < w.loss {
		return
	}
	delay := w.hop + int64(w.delays.Exp(w.hopMore))
	if m.Kind > replica.Owns {
		delay = w.control + int64(w.delays.Exp(w.controlMore))
	}
	if len(w.free) == 0 {
		w.free = append(w.free, uint32(len(w.messages)))
		w.messages = append(w.messages, replica.Message{})
	}
	place := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	w.messages[place] = *m
	w.queue.Push(w.now+delay, firstMessage+place)
}

// arrived is a packet at a server.
func (w *world) arrived(id uint32, server uint8) {
	c := &w.connections[id]
	c.delivered = min(c.delivered+1, c.sent)
	switch {
	case c.server == 0:
		c.server = server
	case c.server != server && !c.broken:
		c.broken = true
		w.broken++
		second := int(w.now / 1e9)
		for len(w.brokenAt) <= second {
			w.brokenAt = append(w.brokenAt, 0)
		}
		w.brokenAt[second]++
	}
}

func (w *world) retryAll() {
	w.take(w.controller.Retry())
	for _, node := range w.nodes {
		if node != nil {
			w.take(node.Retry())
		}
	}
	w.queue.Push(w.now+w.retry, retry)
}

// completed returns how many connections had all of their packets at one server.
func (w *world) completed() (connections int64) {
	for i := range w.connections {
		if c := &w.connections[i]; c.delivered == w.packets && !c.broken {
			connections++
		}
	}
	return connections
}
