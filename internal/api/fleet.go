package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// Desired is the desired state that a fleet API reads and changes: that of all controllers, or of one load balancer. Its errors
// choose what clients are told: *model.Invalid, alone or joined, is a bad request; store.ErrConflict is a change by somebody
// else at the same time; a *connect.Error is passed on; everything else is a failure of the server's own. It is safe for
// concurrent use.
type Desired interface {
	// Fleet returns what is wanted now, and its revision. The caller must not change it.
	Fleet(ctx context.Context) (fleet model.Fleet, revision uint64, err error)
	// FleetAt returns what was wanted after the change that made a revision, without services of owners.
	FleetAt(ctx context.Context, revision uint64) (model.Fleet, error)
	// Newest waits until what is read here is no older than anything that was acknowledged before the call, and returns the revision
	// of it. An *Unconfirmed says that it may be older.
	Newest(ctx context.Context) (revision uint64, err error)
	// History returns the last changes, oldest first.
	History(ctx context.Context) ([]*ballastv1.FleetChange, error)
	// Change carries an edit out: the edited copy gets its defaults, is checked, and becomes what is wanted; changes tells how it
	// differs (fleet.Diff). The errors of edit are returned as they are. A dry run only tells.
	Change(ctx context.Context, dryRun bool, edit fleet.Edit) (changes []string, revision uint64, err error)
	// Forget gives up a removed server and its id; connect.CodeNotFound if there is none of that name. A dry run of it, and of all that follows, only tells.
	Forget(ctx context.Context, dryRun bool, service, server string) (changes []string, revision uint64, err error)
	// Servers tells what is known of the servers of a service, or of all services if it is empty, removed ones that may still have
	// connections included.
	Servers(ctx context.Context, service string) ([]*ballastv1.ServerStatus, error)
	// PredecessorConnections estimates how many connections went on to the predecessor of a service within the last minute. They are known where all
	// load balancers have told that may send some there.
	PredecessorConnections(service string) fleet.Connections
	// Sources tells of the sources of servers of a service, or of all services if it is empty; none: servers are listed.
	Sources(service string) []*ballastv1.SourceStatus
	// LostLoadBalancers names those that are not connected, were not forgotten, and may still send connections by an older state.
	LostLoadBalancers() []string
	// Nodes tells who is connected, and of load balancers of the second tier whether they are healthy.
	Nodes(ctx context.Context) ([]*ballastv1.NodeStatus, error)
	// ForgetNode forgets nodes of that name that are lost, of one role or, if that is empty, of all; connect.CodeNotFound if none is,
	// connect.CodeFailedPrecondition if one is connected.
	ForgetNode(ctx context.Context, dryRun bool, name string, role pki.Role) (changes []string, err error)
	// Explain asks load balancers what would become of a packet; MadeUpFromProto takes it.
	Explain(ctx context.Context, packet *ballastv1.MadeUpPacket) ([]*ballastv1.Explanation, error)
	// Replicas tells of the ring that keeps the replicated table.
	Replicas(ctx context.Context) (*ballastv1.ListReplicasResponse, error)
	// DrainReplica keeps a load balancer off the ring, or lets it on again; connect.CodeNotFound if none of that name is known.
	DrainReplica(ctx context.Context, dryRun bool, name string, off bool) (changes []string, revision uint64, err error)
	// TicketKeys tells of the keys of session tickets, without the keys.
	TicketKeys(ctx context.Context) (*ballastv1.ListTicketKeysResponse, error)
	// UseTicketKey has tickets made by the key of an epoch; 0: the next. Without force it is refused (Unready) where servers could not read them.
	UseTicketKey(ctx context.Context, dryRun bool, epoch uint32, force bool) (changes []string, revision uint64, err error)
	// RevokeTicketKeys puts a new key in the place of all, unless none is left up to the epoch newest; 0: there is one.
	RevokeTicketKeys(ctx context.Context, dryRun bool, newest uint32) (changes []string, revision uint64, err error)
	// RevokeCertificate has nobody accept certificates any more. Without force it is refused (Dangerous), but for a dry run.
	RevokeCertificate(ctx context.Context, r *ballastv1.RevokeCertificateRequest) (*ballastv1.ChangeResponse, error)
	// Revocations lists what was revoked, oldest first.
	Revocations(ctx context.Context) ([]pki.Revocation, error)
	// KeyNodes tells what is known of the nodes that work with the keys, and of the connections that carry their cookies.
	KeyNodes() *rotation.Nodes
	// MakesKeys reports whether keys are made here and told to every node. If not, they come from the configuration file, and
	// who adds one is told the secret, for the other nodes.
	MakesKeys() bool
}

// maxRequest bounds what a client may send: a fleet of 65,536 servers has some 5 MB.
const maxRequest = 64 << 20

// NewFleetHandler serves ballast.v1.Fleet: gRPC, gRPC-Web, and JSON over plain HTTP. Who may use it is for the listener to check.
func NewFleetHandler(d Desired) (path string, handler http.Handler) {
	return ballastv1connect.NewFleetHandler(Fleet(d), connect.WithReadMaxBytes(maxRequest), WithStrictJSON(),
		connect.WithInterceptors(commented(), confirmed(d)))
}

// Fleet answers for ballast.v1.Fleet.
func Fleet(d Desired) ballastv1connect.FleetHandler { return &fleetAPI{d, time.Now} }

// fleetAPI turns requests into edits.
type fleetAPI struct {
	desired Desired
	now     func() time.Time
}

func (f *fleetAPI) GetFleet(ctx context.Context, r *ballastv1.GetFleetRequest) (*ballastv1.GetFleetResponse, error) {
	fleet, revision, err := f.desired.Fleet(ctx)
	if r.Revision != 0 {
		revision = r.Revision
		fleet, err = f.desired.FleetAt(ctx, revision)
	}
	if err != nil {
		return nil, refusal(err)
	}
	return &ballastv1.GetFleetResponse{Revision: revision, Services: servicesToProto(fleet.Services), Nodes: nodesToProto(fleet.Nodes),
		NodeHealth: nodeHealthToProto(&fleet.NodeHealth), Replicas: ReplicasToProto(&fleet.Replicas), Unserved: fleet.Unserved.String()}, nil
}

func (f *fleetAPI) ListChanges(ctx context.Context, _ *ballastv1.ListChangesRequest) (*ballastv1.ListChangesResponse, error) {
	changes, err := f.desired.History(ctx)
	return &ballastv1.ListChangesResponse{Changes: changes}, refusal(err)
}

func (f *fleetAPI) ListServers(ctx context.Context, r *ballastv1.ListServersRequest) (*ballastv1.ListServersResponse, error) {
	if r.Service != "" {
		fleet, _, err := f.desired.Fleet(ctx)
		if err == nil && fleet.Service(r.Service) == nil {
			err = noService(r.Service)
		}
		if err != nil {
			return nil, refusal(err)
		}
	}
	servers, err := f.desired.Servers(ctx, r.Service)
	return &ballastv1.ListServersResponse{Servers: servers, Sources: f.desired.Sources(r.Service), OneNode: !f.desired.MakesKeys(), Lost: f.desired.LostLoadBalancers()}, refusal(err)
}

// change runs an edit for a client who does not want to harm anybody, or says that it is meant (force).
func (f *fleetAPI) change(ctx context.Context, dryRun, force bool, edit func(fleet *model.Fleet, removed []fleet.Removed) error) (*ballastv1.ChangeResponse, error) {
	edited := &model.Fleet{}
	answer, err := f.carefully(ctx, dryRun, force, func(next *fleet.Desired) error {
		edited = &next.Running
		return edit(edited, next.Removed)
	})
	return answer, refusal(named(err, edited))
}

// carefully refuses a change that harms clients or cannot be taken back, unless force is given; a dry run tells of it. What is refused for
// another reason is refused for that.
func (f *fleetAPI) carefully(ctx context.Context, dryRun, force bool, edit fleet.Edit) (*ballastv1.ChangeResponse, error) {
	answer := &ballastv1.ChangeResponse{}
	run := func(dryRun, force bool) (err error) {
		answer.Changes, answer.Revision, err = f.desired.Change(ctx, dryRun, func(next *fleet.Desired) error {
			before := next.Running.Clone()
			if err := edit(next); err != nil {
				return err
			}
			after := next.Running.Clone()
			after.ApplyDefaults()
			if answer.Warnings = Dangers(ctx, f.desired, &before, &after); len(answer.Warnings) > 0 && !force {
				return errDangerous
			}
			if dryRun {
				answer.Live = Living(ctx, f.desired, &before, &after)
			}
			return nil
		})
		return err
	}
	for {
		if err := run(dryRun, dryRun || force); !errors.Is(err, errDangerous) {
			return answer, err
		}
		if err := run(true, true); err != nil {
			return nil, err
		}
		if len(answer.Warnings) > 0 {
			break
		} // else somebody has changed the fleet in between, and it harms nobody any more
	}
	return nil, Dangerous(answer.Warnings)
}

// Dangerous is the refusal of what has to be meant.
func Dangerous(warnings []string) error {
	refused := connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("nothing was changed: %s: if that is meant, repeat it with force (ballast ctl: --yes)",
		strings.Join(warnings, "; ")))
	if detail, err := connect.NewErrorDetail(&ballastv1.Warnings{Warnings: warnings}); err == nil {
		refused.AddDetail(detail)
	}
	return refused
}

var errDangerous = errors.New("this harms clients or cannot be taken back")

// TextOf is an error without the code that it is sent with.
func TextOf(err error) string {
	if refused := new(connect.Error); errors.As(err, &refused) {
		return refused.Message()
	}
	return err.Error()
}

// WarningsOf returns what a change was refused for until it is said that it is meant; nil: it was refused for something else.
func WarningsOf(err error) []string {
	var refused *connect.Error
	if !errors.As(err, &refused) {
		return nil
	}
	for _, detail := range refused.Details() {
		if value, err := detail.Value(); err == nil {
			if warnings, ok := value.(*ballastv1.Warnings); ok {
				return warnings.Warnings
			}
		}
	}
	return nil
}

// refusal gives an error the code that clients go by; nil stays nil.
func refusal(err error) error {
	var coded *connect.Error
	var invalid *model.Invalid
	switch {
	case err == nil:
		return nil
	case errors.As(err, &coded):
		return coded
	case errors.As(err, &invalid):
		return connect.NewError(connect.CodeInvalidArgument, err)
	case errors.Is(err, store.ErrConflict):
		return connect.NewError(connect.CodeAborted, err)
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, err)
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, err)
	}
	return connect.NewError(connect.CodeInternal, err)
}

func noService(name string) error {
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("there is no service %q: see `ballast ctl service list`", name))
}

func noServer(service, name string) error {
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("service %s has no server %q: see `ballast ctl server list`", service, name))
}

func exists(what, name, remedy string) error {
	return connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("there is a %s %q already: %s", what, name, remedy))
}

// missing says that a request lacks a field.
func missing(path, remedy string) error {
	return &model.Invalid{Path: path, Problem: "missing", Remedy: remedy}
}
