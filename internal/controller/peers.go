// Controllers that keep the state themselves, each in its process: who they are, who joins them and who leaves.
package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
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
	joinTimeout  = time.Minute // until somebody has added a controller
	joinPause    = time.Second
	askTimeout   = 15 * time.Second
	reachTimeout = 2 * time.Second
	maxNonce     = 64
	touchTime    = 8 * time.Second // etcd wants five, from the first heartbeat on
	touchPause   = 500 * time.Millisecond
)

// peers is what a controller knows of the cluster that its store is a member of.
type peers struct {
	cluster *etcd.Store // nil: the state is kept elsewhere
	adding  sync.Mutex  // one joins at a time
	shown   *shownCertificates
}

// controllersAPI implements ballastv1connect.ControllersHandler.
type controllersAPI struct{ *controller }

func refuse(code connect.Code, format string, values ...any) error {
	return connect.NewError(code, fmt.Errorf(format, values...))
}

var errElsewhere = refuse(connect.CodeFailedPrecondition,
	"the controllers of this fleet keep their state in an etcd of its own (--etcd): start and stop them as you like, and see `etcdctl member` for etcd")

// unavailable is what is answered when the store does not.
func unavailable(err error) error { return connect.NewError(connect.CodeUnavailable, err) }

// ListControllers tells who keeps the state, and who of them lives.
func (a controllersAPI) ListControllers(ctx context.Context, _ *ballastv1.ListControllersRequest) (*ballastv1.ListControllersResponse, error) {
	a.mutex.Lock()
	live := slices.Clone(a.live)
	a.mutex.Unlock()
	answer := &ballastv1.ListControllersResponse{}
	if a.peers.cluster == nil {
		for _, m := range live {
			answer.Controllers = append(answer.Controllers, &ballastv1.ControllerMember{Name: m.Name, Address: m.Address, State: stateExternal, Alive: true, Version: m.Version})
		}
		return answer, nil
	}
	members, err := a.peers.cluster.Peers(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	answer.Controllers = membersToProto(members)
	for _, c := range answer.Controllers {
		if at := slices.IndexFunc(live, func(m store.Member) bool { return m.Name == c.Name }); at >= 0 {
			c.Alive, c.Version = true, live[at].Version
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
func (a controllersAPI) RemoveController(ctx context.Context, r *ballastv1.RemoveControllerRequest) (*ballastv1.RemoveControllerResponse, error) {
	if a.peers.cluster == nil {
		return nil, errElsewhere
	}
	members, err := a.peers.cluster.Peers(ctx)
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
	id := members[at].ID
	err = a.removePeer(ctx, slices.Delete(members, at, at+1), id)
	switch {
	case errors.Is(err, etcd.ErrLastQuorum):
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	case err != nil:
		return nil, unavailable(err)
	}
	by, _ := api.CallerOf(ctx)
	change := fmt.Sprintf("controller %s: removed", r.Name)
	a.log.Info("changed", "by", by, "changes", []string{change})
	return &ballastv1.RemoveControllerResponse{Changes: []string{change}}, nil
}

// removePeer waits for the others where they all live: etcd counts on those alone that have been in touch for five seconds.
func (a controllersAPI) removePeer(ctx context.Context, others []etcd.Peer, id uint64) error {
	for began := time.Now(); ; {
		err := a.peers.cluster.RemovePeer(ctx, id)
		if !errors.Is(err, etcd.ErrLastQuorum) || time.Since(began) > touchTime || !a.allLive(others) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(touchPause):
		}
	}
}

// allLive reports whether all of these have been heard of in the store.
func (a controllersAPI) allLive(peers []etcd.Peer) bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return !slices.ContainsFunc(peers, func(p etcd.Peer) bool {
		return !slices.ContainsFunc(a.live, func(m store.Member) bool { return m.Name == p.Name })
	})
}

// AddController adds who asks, once it is certain that it is where it says, and that it is nobody else.
func (a controllersAPI) AddController(ctx context.Context, r *ballastv1.AddControllerRequest) (*ballastv1.AddControllerResponse, error) {
	by, ok := api.CallerOf(ctx)
	host, _, errAddress := net.SplitHostPort(r.Address)
	switch {
	case !ok || by.Role != string(pki.Controller):
		return nil, refuse(connect.CodePermissionDenied, "only a controller joins controllers: use a certificate of role %s", pki.Controller)
	case a.peers.cluster == nil:
		return nil, errElsewhere
	case errAddress != nil || host == "" || r.Nonce == "":
		return nil, refuse(connect.CodeInvalidArgument, "address %q, nonce %q: both are needed", r.Address, r.Nonce)
	case by.Name == a.name:
		return nil, refuse(connect.CodeFailedPrecondition, "%s is the name of the controller that was asked: give the new one a certificate of its own", a.name)
	}
	if err := a.reachableByName(); err != nil {
		return nil, err
	}
	a.peers.adding.Lock()
	defer a.peers.adding.Unlock()
	if err := a.asks(ctx, by.Name, r); err != nil {
		return nil, refuse(connect.CodeFailedPrecondition, "controller %s does not reach %s at %s: %w: is its --public right, and may they connect to each other?",
			a.name, by.Name, r.Address, err)
	}
	if err := a.makeRoom(ctx, by.Name, r.Address); err != nil {
		return nil, err
	}
	if err := a.peers.cluster.AddPeer(ctx, r.Address); err != nil {
		return nil, unavailable(err)
	}
	members, err := a.peers.cluster.Peers(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	a.log.Info("a controller joins", "by", by, "address", r.Address)
	return &ballastv1.AddControllerResponse{Controllers: membersToProto(members)}, nil
}

// reachableByName: others check that a certificate names the address that they connect to.
func (c *controller) reachableByName() error {
	host, _, err := net.SplitHostPort(c.address)
	if err == nil {
		err = c.credentials.Names(host)
	}
	if err != nil {
		return refuse(connect.CodeFailedPrecondition, "others reach controller %s at %s: %w: issue its certificate with --address, or give it --public", c.name, c.address, err)
	}
	return nil
}

// asks connects to a controller and finds that it is the one that asks to join.
func (c *controller) asks(ctx context.Context, name string, r *ballastv1.AddControllerRequest) error {
	host, _, err := net.SplitHostPort(r.Address)
	if err != nil {
		return err
	}
	config := c.credentials.At(pki.Controller, name, host)
	client := http.Client{Timeout: reachTimeout, Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+r.Address+noncePath, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(io.LimitReader(response.Body, maxNonce))
	if err != nil {
		return err
	}
	if string(said) != r.Nonce {
		return errors.New("another process of that name is there")
	}
	return nil
}

// makeRoom takes off the list what the one that joins was before, and those that have begun to join and are gone.
func (a controllersAPI) makeRoom(ctx context.Context, name, address string) error {
	members, err := a.peers.cluster.Peers(ctx)
	if err != nil {
		return unavailable(err)
	}
	for _, p := range members {
		switch {
		case p.Address == address && p.Name != "" && p.Name != name:
			return refuse(connect.CodeFailedPrecondition, "%s is the address of controller %s: if that is gone for good, `ballast ctl controller remove %s`, and start this one again",
				address, p.Name, p.Name)
		case p.Address == address: // it has no data any more
		case p.Name == name && a.reached(ctx, p):
			return refuse(connect.CodeAlreadyExists, "there is a controller %s at %s: give this one a name and a certificate of its own", name, p.Address)
		case p.Learner && a.reached(ctx, p):
			return refuse(connect.CodeUnavailable, "controller %s at %s is joining: this one is next", p.Name, p.Address)
		case p.Name == name && !p.Learner:
			return refuse(connect.CodeFailedPrecondition, "controller %s was at %s, which does not answer: if it is gone for good, `ballast ctl controller remove %s`, and start this one again",
				name, p.Address, name)
		case !p.Learner:
			continue
		}
		a.log.Info("a controller that was here before, or did not finish joining, is replaced", "name", p.Name, "address", p.Address)
		if err := a.peers.cluster.RemovePeer(ctx, p.ID); err != nil {
			return unavailable(err)
		}
	}
	return nil
}

// reached reports whether a controller is where the list says.
func (c *controller) reached(ctx context.Context, p etcd.Peer) bool {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	connection, err := (&tls.Dialer{Config: c.credentials.Client()}).DialContext(ctx, "tcp", p.Address)
	if err != nil {
		return false
	}
	connection.Close()
	return true
}

// join asks controllers to add this one, until one does or refuses.
func join(ctx context.Context, log *slog.Logger, others []string, credentials *pki.Credentials, address, nonce string) ([]etcd.Peer, error) {
	client := api.NewControllersClient(others, credentials.Client())
	deadline, said := time.After(joinTimeout), false
	for {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		answer, err := client.AddController(asking, &ballastv1.AddControllerRequest{Address: address, Nonce: nonce})
		cancel()
		switch code := connect.CodeOf(err); {
		case err == nil:
			var peers []etcd.Peer
			for _, c := range answer.Controllers {
				peers = append(peers, etcd.Peer{Name: c.Name, Address: c.Address})
			}
			return peers, nil
		case code != connect.CodeUnavailable && code != connect.CodeUnknown && code != connect.CodeDeadlineExceeded:
			return nil, fmt.Errorf("join the controllers: %w", err)
		}
		if !said {
			said = true
			log.Info("this controller waits until others add it", "reason", err)
		}
		select {
		case <-time.After(joinPause):
		case <-deadline:
			return nil, fmt.Errorf("join the controllers: %w: start a fleet's first controller without --join", err)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
