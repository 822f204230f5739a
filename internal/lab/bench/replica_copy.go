package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/lb/replication"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Implementation constants
const (
	copyAtOnce  = 4096
	copyLook    = 20 * time.Millisecond
	copyTimeout = 10 * time.Minute // with no entry copied
)

// ReplicaCopy is what it takes to copy all entries to a load balancer that is new in all chains, over the loopback device by mutual TLS.
type ReplicaCopy struct {
	Common    int     `json:"common"` // load balancers of each chain that have the entries
	Shared    bool    `json:"shared"` // common nodes share the copying; if not, one of each chain sends to all others
	Entries   uint64  `json:"entries"`
	Seconds   float64 `json:"seconds"`
	CPU       float64 `json:"cpu_seconds"` // of all load balancers
	PerSecond float64 `json:"per_second"`
}

// replicaCopies are what is measured.
func replicaCopies() []ReplicaCopy {
	return []ReplicaCopy{{Common: 1}, {Common: 2}, {Common: 2, Shared: true}}
}

// copyNode is one of the load balancers.
type copyNode struct {
	name    string
	address netip.AddrPort
	tables  *dataplane.Tables
	*replication.Replication
	report chan *ballastv1.ReplicaReport
}

// run fills some load balancers, makes another one a part of all chains, and waits until that has all entries.
func (c ReplicaCopy) run(ctx context.Context, entries uint32) (result *ReplicaCopy, err error) {
	dir, err := os.MkdirTemp("", "ballast-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := pki.Init(dir, pki.DefaultAuthorityLife, false); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	var nodes []*copyNode
	defer func() {
		cancel()
		running.Wait()
		for _, n := range nodes {
			err = errors.Join(err, n.tables.Path().Close())
		}
	}()
	var numbers []uint16
	for number := range c.Common + 1 {
		n, err := newCopyNode(dir, number+1, entries)
		if n != nil {
			nodes = append(nodes, n)
		}
		if err != nil {
			return nil, err
		}
		running.Go(func() { n.Run(ctx) })
		numbers = append(numbers, uint16(number+1))
	}
	common, added := nodes[:c.Common], nodes[c.Common]
	before := ring.Even(numbers[:c.Common], 1)
	after := before.Add(numbers[c.Common], 2)
	chains := ring.Chains{Length: len(nodes), Share: c.Shared}
	for _, n := range common {
		n.OnView("bench", viewMessage(1, before, nodes))
		if err := n.fill(entries); err != nil {
			return nil, err
		}
	}
	syncs, _ := ring.ComputeSync(chains, []ring.List{before, after}, nil, 1)
	starts := map[string][]*ballastv1.ReplicaSync{}
	for _, s := range syncs {
		if s.Lost || int(s.Node) > c.Common {
			return nil, fmt.Errorf("number %d is to lead a sync, and has no entries", s.Node)
		}
		name := nodes[s.Node-1].name
		starts[name] = append(starts[name], &ballastv1.ReplicaSync{Id: s.ID, Low: uint32(s.Range.Low), High: uint32(s.Range.High),
			First: uint32(s.To.First), After: uint32(s.To.After)})
	}
	view := viewMessage(2, after, nodes)
	for _, n := range nodes { // so that nothing is sent to who does not know the ring yet
		n.OnView("bench", view)
	}
	for _, n := range nodes {
		if err := n.listens(ctx); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	cpu, err := processCPU()
	if err != nil {
		return nil, err
	}
	view.Revision++
	for _, n := range common {
		own := proto.CloneOf(view)
		own.Shares = starts[n.name]
		n.OnView("bench", own)
	}
	for _, n := range common {
		if err := n.await(ctx, len(starts[n.name])); err != nil {
			return nil, err
		}
	}
	took := time.Since(began)
	until, err := processCPU()
	if err != nil {
		return nil, err
	}
	table, _ := added.tables.Path().ReplicaTables()
	if got := table.Count(); got != int(entries) {
		return nil, fmt.Errorf("%d entries were copied, want %d", got, entries)
	}
	c.CPU = (until - cpu).Seconds()
	c.Entries, c.Seconds, c.PerSecond = uint64(entries), took.Seconds(), float64(entries)/took.Seconds()
	return &c, nil
}

func newCopyNode(dir string, number int, entries uint32) (*copyNode, error) {
	n := &copyNode{name: fmt.Sprint("lb", number), report: make(chan *ballastv1.ReplicaReport, 1),
		address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 75, 0, byte(number)}), replication.Port)}
	err := pki.Issue(dir, pki.Request{Role: pki.LB, Name: n.name, Life: time.Hour})
	if err != nil {
		return nil, err
	}
	credentials, err := pki.Load(dir, n.name, pki.LB)
	if err != nil {
		return nil, err
	}
	limits := tableLimits(1)
	limits.Replicated = entries
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if n.tables, err = dataplane.Open(dataplane.Options{Limits: limits, Self: n.name, Log: log}); err != nil {
		return nil, err
	}
	n.Replication, err = replication.New(replication.Options{Name: n.name, Address: n.address, Tables: n.tables, Credentials: credentials,
		Send: n.deliver, Save: func() {}, Log: log}, nil)
	return n, err
}

// deliver keeps the newest report.
func (n *copyNode) deliver(message *ballastv1.FromNode) {
	report := message.GetReplica()
	if report == nil {
		return
	}
	select {
	case <-n.report:
	default:
	}
	n.report <- report
}

// fill puts entries in, whose keys are drawn at random.
func (n *copyNode) fill(entries uint32) error {
	table, _ := n.tables.Path().ReplicaTables()
	period := n.tables.Path().ReplicaPeriod()
	random := rand.New(rand.NewPCG(uint64(entries), 0))
	for left := int(entries); left > 0; {
		some := make([]replicas.Entry, min(left, copyAtOnce))
		for i := range some {
			some[i] = replicas.Entry{Key: random.Uint64() | 2, Owner: uint16(1 + i%servers), Period: period, Flags: replicas.Cacheable}
		}
		if err := table.Put(some); err != nil {
			return err
		}
		for i := range some {
			if some[i].Owner == 0 {
				return fmt.Errorf("there is no room for %d entries", entries)
			}
		}
		left -= len(some)
	}
	return nil
}

// listens waits until the load balancer takes copies.
func (n *copyNode) listens(ctx context.Context) error {
	look := time.NewTicker(copyLook)
	defer look.Stop()
	for {
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", n.address.String())
		if err == nil {
			return connection.Close()
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// processCPU is the time that this process has taken so far.
func processCPU() (time.Duration, error) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("read this process's CPU time: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}

// await waits until so many syncs are done.
func (n *copyNode) await(ctx context.Context, syncs int) error {
	for done := 0; done < syncs; {
		select {
		case report := <-n.report:
			done = len(report.Done)
		case <-time.After(copyTimeout):
			return errors.New("the copies are not made")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// viewMessage is what a controller would say of a ring whose first version is synced.
func viewMessage(version uint32, list ring.List, nodes []*copyNode) *ballastv1.ReplicaView {
	view := &ballastv1.ReplicaView{Revision: uint64(version), Version: version, Synced: 1, Chain: uint32(len(nodes)),
		IdleTimeout: durationpb.New(time.Duration(model.MaxReplicaIdleTimeout))}
	for range list {
		view.Since = append(view.Since, version)
	}
	for i, n := range nodes {
		reported := &ballastv1.ReplicaNode{Number: uint32(i + 1), Name: n.name, Address: n.address.String(), Incarnation: n.State().Incarnation}
		if member, on := list.Find(uint16(i + 1)); on {
			reported.OnRing, reported.Life, reported.Position = true, member.Life, uint32(member.At)
		}
		view.Nodes = append(view.Nodes, reported)
	}
	return view
}
