package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"time"

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
	copyChain   = 2
	copyAtOnce  = 4096
	copyTimeout = 10 * time.Minute // with no entry copied
	copyLook    = 20 * time.Millisecond
)

// ReplicaCopy is what it takes to copy all entries of a load balancer to one that is new, over the loopback device by mutual TLS.
type ReplicaCopy struct {
	Entries   uint64  `json:"entries"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"per_second"`
}

// copyNode is one of the two load balancers.
type copyNode struct {
	name    string
	address netip.AddrPort
	tables  *dataplane.Tables
	*replication.Replication
	report chan *ballastv1.ReplicaReport
}

// copyEntries fills one load balancer, makes another one a part of all chains, and waits until that has all entries.
func copyEntries(ctx context.Context, entries uint32) (result *ReplicaCopy, err error) {
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
	for number := range 2 {
		n, err := newCopyNode(dir, number+1, entries)
		if n != nil {
			nodes = append(nodes, n)
		}
		if err != nil {
			return nil, err
		}
		running.Go(func() { n.Run(ctx) })
	}
	one, two := nodes[0], nodes[1]
	before := ring.List{{Node: 1, Life: 1, At: 0}}
	after := before.Add(2, 2)
	one.OnView("bench", viewMessage(1, 1, before, nodes, nil))
	if err := one.fill(entries); err != nil {
		return nil, err
	}
	syncs, _ := ring.ComputeSync(ring.Chains{Length: copyChain}, []ring.List{before, after}, nil, 1)
	var starts []*ballastv1.ReplicaSync
	for _, s := range syncs {
		if s.Node != 1 {
			return nil, fmt.Errorf("number %d is to lead a sync, and has no entries", s.Node)
		}
		starts = append(starts, &ballastv1.ReplicaSync{Id: s.ID, Low: uint32(s.Range.Low), High: uint32(s.Range.High)})
	}
	two.OnView("bench", viewMessage(2, 1, after, nodes, nil))
	began := time.Now()
	one.OnView("bench", viewMessage(2, 1, after, nodes, starts))
	if err := one.await(ctx, len(starts)); err != nil {
		return nil, err
	}
	took := time.Since(began)
	table, _ := two.tables.Path().ReplicaTables()
	if got := table.Count(); got != int(entries) {
		return nil, fmt.Errorf("%d entries were copied, want %d", got, entries)
	}
	return &ReplicaCopy{Entries: uint64(entries), Seconds: took.Seconds(), PerSecond: float64(entries) / took.Seconds()}, nil
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

// said keeps the newest report.
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

// await waits until so many syncs are done.
func (n *copyNode) await(ctx context.Context, syncs int) error {
	for {
		select {
		case report := <-n.report:
			if len(report.Done) == syncs {
				return nil
			}
		case <-time.After(copyTimeout):
			return errors.New("the copies are not made")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// viewMessage is what a controller would say of a ring.
func viewMessage(version, synced uint32, list ring.List, nodes []*copyNode, starts []*ballastv1.ReplicaSync) *ballastv1.ReplicaView {
	view := &ballastv1.ReplicaView{Revision: uint64(version), Version: version, Synced: synced, Chain: copyChain,
		IdleTimeout: durationpb.New(time.Duration(model.MaxReplicaIdleTimeout)), Starts: starts}
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
