// How a controller joins others.
package members

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

// NoncePath is where a controller that joins answers who it is.
const NoncePath = "/v1/joining"

// Implementation constants.
const (
	joinTimeout = time.Minute // until somebody has added a controller
	joinPause   = time.Second
	askTimeout  = 15 * time.Second
	maxNonce    = 64
)

// AddController adds who asks, once it is certain that it is where it says, and that it is nobody else.
func (c *Cluster) AddController(ctx context.Context, r *ballastv1.AddControllerRequest) (*ballastv1.AddControllerResponse, error) {
	by, ok := api.CallerOf(ctx)
	host, _, errAddress := net.SplitHostPort(r.Address)
	switch {
	case !ok || by.Role != string(pki.Controller):
		return nil, refuse(connect.CodePermissionDenied, "only a controller joins controllers: use a certificate of role %s", pki.Controller)
	case c.o.Store == nil:
		return nil, errElsewhere
	case errAddress != nil || host == "" || r.Nonce == "":
		return nil, refuse(connect.CodeInvalidArgument, "address %q, nonce %q: both are needed", r.Address, r.Nonce)
	case by.Name == c.o.Name:
		return nil, refuse(connect.CodeFailedPrecondition, "%s is the name of the controller that was asked: give the new one a certificate of its own", c.o.Name)
	}
	if err := c.reachableByName(); err != nil {
		return nil, err
	}
	c.adding.Lock()
	defer c.adding.Unlock()
	if err := c.asks(ctx, by.Name, r); err != nil {
		return nil, refuse(connect.CodeFailedPrecondition, "controller %s does not reach %s at %s: %w: is its --public right, and may they connect to each other?",
			c.o.Name, by.Name, r.Address, err)
	}
	if err := c.makeRoom(ctx, by.Name, r.Address); err != nil {
		return nil, err
	}
	if err := c.o.Store.AddPeer(ctx, r.Address); err != nil {
		return nil, unavailable(err)
	}
	members, err := c.o.Store.Peers(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	c.o.Log.Info("a controller joins", "by", by, "address", r.Address)
	return &ballastv1.AddControllerResponse{Controllers: membersToProto(members)}, nil
}

// reachableByName: others check that a certificate names the address that they connect to.
func (c *Cluster) reachableByName() error {
	host, _, err := net.SplitHostPort(c.o.Address)
	if err == nil {
		err = c.o.Credentials.Names(host)
	}
	if err != nil {
		return refuse(connect.CodeFailedPrecondition, "others reach controller %s at %s: %w: issue its certificate with --address, or give it --public", c.o.Name, c.o.Address, err)
	}
	return nil
}

// asks connects to a controller and finds that it is the one that asks to join.
func (c *Cluster) asks(ctx context.Context, name string, r *ballastv1.AddControllerRequest) error {
	host, _, err := net.SplitHostPort(r.Address)
	if err != nil {
		return err
	}
	config := c.o.Credentials.At(pki.Controller, name, host)
	client := http.Client{Timeout: reachTimeout, Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+r.Address+NoncePath, nil)
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
func (c *Cluster) makeRoom(ctx context.Context, name, address string) error {
	members, err := c.o.Store.Peers(ctx)
	if err != nil {
		return unavailable(err)
	}
	for _, p := range members {
		switch {
		case p.Address == address && p.Name != "" && p.Name != name:
			return refuse(connect.CodeFailedPrecondition, "%s is the address of controller %s: if that is gone for good, `ballast ctl controller remove %s`, and start this one again",
				address, p.Name, p.Name)
		case p.Address == address: // it has no data any more
		case p.Name == name && c.reached(ctx, p):
			return refuse(connect.CodeAlreadyExists, "there is a controller %s at %s: give this one a name and a certificate of its own", name, p.Address)
		case p.Learner && c.reached(ctx, p):
			return refuse(connect.CodeUnavailable, "controller %s at %s is joining: this one is next", p.Name, p.Address)
		case p.Name == name && !p.Learner:
			return refuse(connect.CodeFailedPrecondition, "controller %s was at %s, which does not answer: if it is gone for good, `ballast ctl controller remove %s`, and start this one again",
				name, p.Address, name)
		case !p.Learner:
			continue
		}
		c.o.Log.Info("a controller that was here before, or did not finish joining, is replaced", "name", p.Name, "address", p.Address)
		if err := c.o.Store.RemovePeer(ctx, p.ID); err != nil {
			return unavailable(err)
		}
	}
	return nil
}

// reached reports whether a controller is where the list says.
func (c *Cluster) reached(ctx context.Context, p etcd.Peer) bool {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	connection, err := (&tls.Dialer{Config: c.o.Credentials.Client()}).DialContext(ctx, "tcp", p.Address)
	if err != nil {
		return false
	}
	connection.Close()
	return true
}

// Join asks controllers to add this one, until one does or refuses.
func Join(
	ctx context.Context, log *slog.Logger, others ballastv1connect.ControllersClient, address, nonce string,
) ([]etcd.Peer, error) {
	deadline, said := time.After(joinTimeout), false
	for {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		answer, err := others.AddController(asking, &ballastv1.AddControllerRequest{Address: address, Nonce: nonce})
		cancel()
		switch code := connect.CodeOf(err); {
		case err == nil:
			return membersFromProto(answer.Controllers), nil
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

// List asks controllers for the members of the store.
func List(ctx context.Context, others ballastv1connect.ControllersClient) ([]etcd.Peer, error) {
	answer, err := others.ListControllers(ctx, &ballastv1.ListControllersRequest{})
	if err != nil {
		return nil, err
	}
	return membersFromProto(answer.Controllers), nil
}

func membersFromProto(list []*ballastv1.ControllerMember) (peers []etcd.Peer) {
	for _, c := range list {
		peers = append(peers, etcd.Peer{Name: c.Name, Address: c.Address})
	}
	return peers
}
