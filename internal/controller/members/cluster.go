// Package members is about controllers that keep the state themselves, each in its process: who they are, who joins
// them and who leaves.
package members

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/election"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

// States of a controller.
const (
	stateVoter    = "voter"
	stateJoining  = "joining"
	stateExternal = "external"
)

// Implementation constants.
const (
	reachTimeout = 2 * time.Second
	touchTime    = 8 * time.Second // etcd wants five, from the first heartbeat on
	touchPause   = 500 * time.Millisecond
)

// Options are what a cluster needs.
type Options struct {
	Name, Address string      // of this controller
	Store         *etcd.Store // nil: the state is kept elsewhere
	Shown         *Shown      // may be nil without Store
	Live          func() []store.Member
	Credentials   *pki.Credentials
	Log           *slog.Logger
}

// Cluster is the controllers whose stores are members of one. It implements ballastv1connect.ControllersHandler.
type Cluster struct {
	o      Options
	adding sync.Mutex // one joins at a time
}

// New returns the cluster of this controller.
func New(o Options) *Cluster { return &Cluster{o: o} }

func refuse(code connect.Code, format string, values ...any) error {
	return connect.NewError(code, fmt.Errorf(format, values...))
}

var errElsewhere = refuse(connect.CodeFailedPrecondition,
	"the controllers of this fleet keep their state in an etcd of its own (--etcd): start and stop them as you like, and see `etcdctl member` for etcd")

// unavailable is what is answered when the store does not answer.
func unavailable(err error) error { return connect.NewError(connect.CodeUnavailable, err) }

// ListControllers tells who keeps the state, and who of them lives.
func (c *Cluster) ListControllers(ctx context.Context, _ *ballastv1.ListControllersRequest) (*ballastv1.ListControllersResponse, error) {
	live := c.o.Live()
	answer := &ballastv1.ListControllersResponse{}
	if c.o.Store == nil {
		for _, m := range live {
			answer.Controllers = append(answer.Controllers, &ballastv1.ControllerMember{Name: m.Name, Address: m.Address, State: stateExternal, Alive: true, Version: m.Version})
		}
		return answer, nil
	}
	members, err := c.o.Store.Peers(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	answer.Controllers = membersToProto(members)
	for _, member := range answer.Controllers {
		if at := slices.IndexFunc(live, func(m store.Member) bool { return m.Name == member.Name }); at >= 0 {
			member.Alive, member.Version = true, live[at].Version
		}
	}
	return answer, nil
}

func membersToProto(members []etcd.Peer) (list []*ballastv1.ControllerMember) {
	for _, p := range members {
		state := stateVoter
		if p.Learner {
			state = stateJoining
		}
		list = append(list, &ballastv1.ControllerMember{Name: p.Name, Address: p.Address, State: state, Leader: p.Leader})
	}
	slices.SortFunc(list, func(a, b *ballastv1.ControllerMember) int {
		return strings.Compare(a.Name+" "+a.Address, b.Name+" "+b.Address)
	})
	return list
}

// RemoveController removes one by its name, or by its address where it has none yet.
func (c *Cluster) RemoveController(ctx context.Context, r *ballastv1.RemoveControllerRequest) (*ballastv1.RemoveControllerResponse, error) {
	if c.o.Store == nil {
		return nil, errElsewhere
	}
	members, err := c.o.Store.Peers(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	at := slices.IndexFunc(members, func(p etcd.Peer) bool {
		return r.Name != "" && (p.Name == r.Name || p.Name == "" && p.Address == r.Name)
	})
	switch {
	case at < 0:
		return nil, refuse(connect.CodeNotFound, "there is no controller %q: see `ballast ctl controller list`", r.Name)
	case len(members) == 1:
		return nil, refuse(connect.CodeFailedPrecondition, "controller %s is the only one: the fleet's state is nowhere else", r.Name)
	}
	id, change := members[at].ID, removed(r.Name)
	if members = slices.Delete(members, at, at+1); r.DryRun {
		return &ballastv1.RemoveControllerResponse{Changes: []string{change}}, c.majority(members)
	}
	err = c.remove(ctx, members, id)
	switch {
	case errors.Is(err, etcd.ErrLastQuorum):
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	case err != nil:
		return nil, unavailable(err)
	}
	by, _ := api.CallerOf(ctx)
	c.o.Log.Info("changed", "by", by, "changes", []string{change})
	return &ballastv1.RemoveControllerResponse{Changes: []string{change}}, nil
}

// remove waits for the others where they all live: etcd counts on those alone that have been in touch for five seconds.
func (c *Cluster) remove(ctx context.Context, others []etcd.Peer, id uint64) error {
	for began := time.Now(); ; {
		err := c.o.Store.RemovePeer(ctx, id)
		if !errors.Is(err, etcd.ErrLastQuorum) || time.Since(began) > touchTime || !c.allLive(others) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(touchPause):
		}
	}
}

// majority refuses (FAILED_PRECONDITION) to leave the store to peers of whom too few live.
func (c *Cluster) majority(peers []etcd.Peer) error {
	live := c.o.Live()
	dead := len(slices.DeleteFunc(slices.Clone(peers), func(p etcd.Peer) bool { return election.Lives(p.Name, live) }))
	if 2*dead >= len(peers) {
		return connect.NewError(connect.CodeFailedPrecondition, etcd.ErrLastQuorum)
	}
	return nil
}

// allLive reports whether all of these have been heard of in the store.
func (c *Cluster) allLive(peers []etcd.Peer) bool {
	live := c.o.Live()
	return !slices.ContainsFunc(peers, func(p etcd.Peer) bool {
		return !election.Lives(p.Name, live)
	})
}
