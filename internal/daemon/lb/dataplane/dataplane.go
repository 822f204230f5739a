// Package dataplane makes the tables that packets see follow the desired state. Nobody else writes them.
//
// Locks, in this order: Tables.mutex, one change at a time, is held while the kernel is asked for paths; Tables.moving is held while
// tables are written, and by those who need what they have read of a Snapshot to stay where it is.
package dataplane

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/pathid"
	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/daemon/paths"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Options of Open.
type Options struct {
	Dir    string // of the pins
	Limits plan.Limits
	Self   string // name of this node
	// NoCookie tells which servers of a service cannot carry cookies.
	NoCookie func(now *Snapshot, service *model.Service) map[uint16]bool
	Log      *slog.Logger
}

// Tables are those of one load balancer. All methods are safe for concurrent use.
type Tables struct {
	options Options
	path    *lb.LB

	moving   sync.RWMutex // while a change is written
	now      atomic.Pointer[Snapshot]
	reroutes atomic.Uint64 // how often routes have changed

	mutex     sync.Mutex // one change at a time; guards what follows
	tables    *plan.Tables
	paths     paths.Table
	routes    *netdev.Routes             // that paths go by
	weights   map[string]*follow.Weights // by service
	counted   map[string]*counted        // by service
	given     map[string]*given          // by service
	reported  map[string]*reported       // by service
	flooded   map[string]bool            // services with syn_proxy auto that is on
	accepts   netip.Addr                 // where the first tier sends to
	starts    map[string]starts          // by service; of those with slow_start
	begun     chan struct{}              // servers have begun to start: Start waits for it
	missed    missed
	returning returning
	late      late
	peers     plan.Replicas // load balancers that messages go to
}

// Open takes over what an earlier process left, untouched, or makes empty tables.
func Open(o Options) (*Tables, error) {
	path, err := lb.Open(o.Dir, o.Limits)
	if err != nil {
		return nil, err
	}
	t := &Tables{options: o, path: path, routes: &netdev.Routes{}, begun: make(chan struct{}, 1), weights: map[string]*follow.Weights{}, counted: map[string]*counted{}, given: map[string]*given{}, reported: map[string]*reported{}}
	if err = path.DeferCounts(true); err == nil {
		t.tables, err = plan.Restore(o.Limits, path)
	}
	if err != nil {
		return nil, errors.Join(err, path.Close())
	}
	t.paths.Here = path.LacksAgent
	first := &Snapshot{State: &desired.State{Self: o.Self}, path: path}
	first.place(t.tables.Places())
	t.now.Store(first)
	return t, nil
}

// Path is the program with its maps.
func (t *Tables) Path() *lb.LB { return t.path }

// Now is what packets see.
func (t *Tables) Now() *Snapshot { return t.now.Load() }

// Hold runs do while no table is written: what the snapshot names is where it says.
func (t *Tables) Hold(do func(now *Snapshot)) {
	t.moving.RLock()
	defer t.moving.RUnlock()
	do(t.now.Load())
}

// Reconcile makes the tables follow another state. On an error they follow the one before.
func (t *Tables) Reconcile(next *desired.State) error {
	found := t.await(next.Addresses())
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.take(found)
	if !t.Now().Followed {
		for service, weights := range t.tables.Weights(next.Running.Services) {
			if next.Running.Service(service).SlowStart == 0 { // else they may be those of a server that has started, and is whole now
				t.weights[service] = &follow.Weights{Values: weights}
			}
		}
		t.flooded = t.tables.AnswersSYNs(next.Running.Services)
	}
	follows := make(map[string]bool, len(t.weights))
	for i := range next.Running.Services {
		s := &next.Running.Services[i]
		follows[s.Name] = weighs(next, s)
	}
	maps.DeleteFunc(t.weights, func(name string, _ *follow.Weights) bool { return !follows[name] })
	maps.DeleteFunc(t.counted, func(name string, _ *counted) bool { return next.Running.Service(name) == nil })
	maps.DeleteFunc(t.given, func(name string, _ *given) bool { return next.Running.Service(name) == nil })
	maps.DeleteFunc(t.reported, func(name string, _ *reported) bool { return next.Running.Service(name) == nil })
	maps.DeleteFunc(t.flooded, func(name string, _ bool) bool {
		s := next.Running.Service(name)
		return s == nil || s.SYNProxy != model.SYNProxyAuto
	})
	return t.follow(next)
}

// SetReplicas makes messages go to other load balancers, and come from them.
func (t *Tables) SetReplicas(peers plan.Replicas) error {
	found := t.await(slices.Collect(maps.Values(peers.Nodes)))
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.take(found)
	t.peers = peers
	if !t.Now().Followed {
		return nil
	}
	return t.follow(t.Now().State)
}

// found are routes to addresses that are new.
type found struct {
	netdev.Routes
	reroutes uint64 // when they were asked for
}

// await asks for the ways to those of the addresses that are new, and waits a little for their neighbours.
func (t *Tables) await(addresses []netip.Addr) *found {
	new := &found{reroutes: t.reroutes.Load()}
	now := t.Now()
	paths.AwaitNeighbours(slices.DeleteFunc(addresses, func(address netip.Addr) bool {
		_, known := now.Paths[address]
		return known || now.Pathless[address] != ""
	}), &new.Routes)
	return new
}

// take keeps the routes that were found, unless some have changed since. Its caller holds mutex.
func (t *Tables) take(new *found) {
	if new.reroutes == t.reroutes.Load() {
		t.routes.Add(&new.Routes)
	}
}

// Refresh follows routes and neighbours, and what was not carried out before.
func (t *Tables) Refresh() error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.reroutes.Add(1)
	t.routes = &netdev.Routes{}
	return t.again()
}

// RefreshNeighbours is Refresh while routes are as they were.
func (t *Tables) RefreshNeighbours() error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.again()
}

// again carries out the state that is followed. Its caller holds mutex.
func (t *Tables) again() error {
	if !t.Now().Followed {
		return nil
	}
	return t.follow(t.Now().State)
}

// Probe has the kernel confirm the next hops towards servers that do not answer.
func (t *Tables) Probe(silent []netip.Addr) error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.paths.Probe(silent)
}

// Narrow follows what routers say about the way to a server: clients get to know by the data path.
func (t *Tables) Narrow(found netdev.TooBig) error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	state := t.Now().State
	if t.paths.Narrow(found, pathid.Secret(state.Running.Keys.Placement, found.Destination), time.Now()) != paths.Believed {
		return nil
	}
	t.options.Log.Info("path to server is narrower than its route says", "address", found.Destination, "mtu", found.MTU)
	if need := state.IPv6Needs(found.Destination); found.MTU < need {
		t.options.Log.Warn("path to server is too narrow for IPv6 clients, who send packets of 1280 bytes at the least: widen it",
			"address", found.Destination, "mtu", found.MTU, "needs", need)
	}
	return t.follow(state)
}

// follow writes what differs between the tables and a state. Its caller holds mutex.
func (t *Tables) follow(state *desired.State) error {
	before, addresses := t.Now(), state.Addresses()
	t.paths.Refresh(t.withPeers(addresses), t.routes, t.options.Log)
	want := plan.Want{Keys: state.Running.Keys, Paths: t.paths.Known, Tier: state.Tier(), Services: state.Services(), Replicas: t.peers,
		Rejects: state.Running.Unserved == model.UnservedReject}
	starting := t.startsOf(state, time.Now())
	for i := range want.Services {
		s := &want.Services[i]
		s.Starting = starting[s.Name].parts
		s.NoCookie = t.options.NoCookie(before, &s.Service)
		if weights := t.weights[s.Name]; weights != nil {
			s.Weights = weights.Values
		}
		s.Flooded = t.flooded[s.Name]
		t.sparesOwn(s)
	}
	if err := t.keepFromFunctions(state); err != nil {
		return err
	}
	changes, err := t.tables.Update(&want)
	if err != nil {
		return err
	}
	next := &Snapshot{State: state, Followed: true, Generation: before.Generation, Paths: t.paths.Known, Pathless: only(t.paths.Why, addresses), Flooded: maps.Clone(t.flooded), path: t.path}
	if len(changes) > 0 {
		next.Generation++
	}
	if err := t.write(changes, next); err != nil {
		return err
	}
	t.starts = starting
	select {
	case t.begun <- struct{}{}:
	default:
	}
	if !before.Followed {
		return nil
	}
	t.beginAgain(before.State, next)
	return nil
}

// sparesOwn gives no new connections to a server on this host that packets cannot be given to.
func (t *Tables) sparesOwn(s *plan.Service) {
	for i := range s.Servers {
		server := &s.Servers[i]
		if !t.paths.Own[server.Address] || t.paths.Known[server.Address].Here && plan.ServesHere(&s.Service) {
			continue
		}
		s.Down = maps.Clone(s.Down)
		if s.Down == nil {
			s.Down = map[uint16]bool{}
		}
		s.Down[server.ID] = true
	}
}

// keepFromFunctions keeps what is for this host from network functions, where there are any.
func (t *Tables) keepFromFunctions(state *desired.State) error {
	if !slices.ContainsFunc(state.Running.Services, func(s model.Service) bool { return s.Functions() }) {
		return nil
	}
	local, err := netdev.LocalAddresses()
	if err != nil {
		return fmt.Errorf("keep what is for this host from network functions: %w", err)
	}
	return t.path.SetHostAddresses(local)
}

// withPeers are the addresses of servers and of other load balancers, each once.
func (t *Tables) withPeers(servers []netip.Addr) []netip.Addr {
	all := slices.Clone(servers)
	for number, address := range t.peers.Nodes {
		if number != t.peers.Self && !slices.Contains(servers, address) {
			all = append(all, address)
		}
	}
	return all
}

// only is what is said of some addresses.
func only(why map[netip.Addr]string, addresses []netip.Addr) map[netip.Addr]string {
	some := make(map[netip.Addr]string, len(why))
	for _, address := range addresses {
		if text, ok := why[address]; ok {
			some[address] = text
		}
	}
	return some
}

// write carries changes out, after which packets see next; nil: what they saw before. Where that fails, the plan is what the tables really
// say: it knows no names of services then, so that the whole desired state has to be carried out again (Refresh). Its caller holds mutex.
func (t *Tables) write(changes []plan.Change, next *Snapshot) error {
	t.moving.Lock()
	defer t.moving.Unlock()
	err := t.path.Apply(changes)
	if err == nil && next != nil {
		err = t.accept(next.ThisNode().Address)
	}
	if err != nil {
		incomplete := *t.Now()
		next, incomplete.Incomplete = &incomplete, true
		if tables, restoreErr := plan.Restore(t.options.Limits, t.path); restoreErr == nil {
			t.tables = tables
		}
	}
	if next != nil {
		next.place(t.tables.Places())
		t.now.Store(next)
	}
	return err
}

// Sources are the addresses that tunnels come from now, each once.
func (t *Tables) Sources() []netip.Addr { return t.Now().Sources() }

// accept makes the data path open what the first tier sends to this node. Its caller holds mutex.
func (t *Tables) accept(address netip.Addr) error {
	if address == t.accepts {
		return nil
	}
	if err := t.path.AcceptTunnels(address); err != nil {
		return fmt.Errorf("take packets from the first tier: %w", err)
	}
	t.accepts = address
	return nil
}

// Stop lets what is under way finish, and nothing begin any more.
func (t *Tables) Stop() {
	t.mutex.Lock()
	t.moving.Lock()
}

// Outcomes counts the errors of routers by what became of them.
func (t *Tables) Outcomes() map[string]uint64 { return t.paths.Outcomes() }
