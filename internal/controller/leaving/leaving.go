// Package leaving has nodes leave their fleet. Each speaks of itself alone: who has its key can take it out of service, and nobody else.
package leaving

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Implementation constants.
const (
	requestBytes = 1 << 10
	endsWithin   = 3 * time.Second // the stream of a daemon that was just stopped
	lookEvery    = 50 * time.Millisecond
)

// Options are what answers.
type Options struct {
	Fleet  ballastv1connect.FleetHandler // as operators are answered
	Engine *engine.Engine
	Mirror *desired.Mirror
	Revoke func(context.Context, *ballastv1.RevokeCertificateRequest) (*ballastv1.ChangeResponse, error)
	Forget func(ctx context.Context, dryRun bool, name string, role pki.Role) (changes []string, err error)
}

// Leaving implements ballastv1connect.LeavingHandler.
type Leaving struct{ o Options }

// New returns one.
func New(o Options) *Leaving { return &Leaving{o} }

type caller struct{} // key of a request's context: its pki.Identity

// ForNodes has it answer load balancers and agents, by mutual TLS.
func (l *Leaving) ForNodes() (path string, handler http.Handler) {
	path, served := ballastv1connect.NewLeavingHandler(l, connect.WithReadMaxBytes(requestBytes))
	return path, hub.ForNodes(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := hub.Certified(r)
		if err != nil {
			connect.NewErrorWriter().Write(w, r, err) // the client may have gone
			return
		}
		by := api.Caller{Name: who.Name, Role: string(who.Role), Address: r.RemoteAddr, Certificate: r.TLS.PeerCertificates[0]}
		served.ServeHTTP(w, r.WithContext(context.WithValue(api.WithCaller(r.Context(), by), caller{}, who)))
	}))
}

// Drain implements ballastv1connect.LeavingHandler. What is drained already stays so, and is no change.
func (l *Leaving) Drain(ctx context.Context, r *ballastv1.LeavingDrainRequest) (*ballastv1.LeavingDrainResponse, error) {
	who := ctx.Value(caller{}).(pki.Identity)
	if who.Role == pki.Agent {
		return l.drainServers(ctx, &who, r)
	}
	return l.drainNode(ctx, who.Name, r)
}

func (l *Leaving) drainServers(ctx context.Context, who *pki.Identity, r *ballastv1.LeavingDrainRequest) (*ballastv1.LeavingDrainResponse, error) {
	answer := &ballastv1.LeavingDrainResponse{}
	own := l.o.Engine.ServersOf(*who)
	for i := range own {
		s := &own[i]
		if r.Look || s.Server.State != model.StateActive {
			continue
		}
		done, err := l.o.Fleet.DrainServer(ctx, &ballastv1.DrainServerRequest{Service: s.Service, Server: s.Server.Name, Force: r.Force})
		if err != nil {
			return nil, err
		}
		answer.Changes = append(answer.Changes, done.Changes...)
	}
	if len(own) == 0 {
		return answer, nil
	}
	all, err := l.o.Fleet.ListServers(ctx, &ballastv1.ListServersRequest{})
	if err != nil {
		return nil, err
	}
	answer.Lost = all.Lost
	for _, s := range all.Servers {
		if !s.Removed && slices.ContainsFunc(own, func(o engine.ServerStatus) bool { return o.Service == s.Service && uint32(o.Server.ID) == s.Server.Id }) {
			answer.Servers = append(answer.Servers, s)
		}
	}
	return answer, nil
}

func (l *Leaving) drainNode(ctx context.Context, name string, r *ballastv1.LeavingDrainRequest) (*ballastv1.LeavingDrainResponse, error) {
	answer := &ballastv1.LeavingDrainResponse{}
	now, err := l.o.Fleet.GetFleet(ctx, &ballastv1.GetFleetRequest{})
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(now.Nodes, func(n *ballastv1.Node) bool { return n.Name == name }); i >= 0 {
		answer.Node = now.Nodes[i]
	}
	ring, err := l.o.Fleet.ListReplicas(ctx, &ballastv1.ListReplicasRequest{})
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(ring.Nodes, func(n *ballastv1.ReplicaStatus) bool { return n.Name == name })
	onRing := i >= 0 && ring.Needed && (ring.Nodes[i].Share > 0 || ring.Nodes[i].State == "on" || ring.Nodes[i].State == "draining")
	if onRing && !r.Look {
		done, err := l.o.Fleet.DrainReplica(ctx, &ballastv1.NodeRequest{Node: name})
		switch {
		case err == nil:
			answer.Changes = append(answer.Changes, done.Changes...)
		case connect.CodeOf(err) != connect.CodeFailedPrecondition:
			return nil, err
		case !r.Force: // too few others stay
			return nil, api.Dangerous([]string{api.TextOf(err) + ": the entries that it alone has are lost when it leaves"})
		default:
			onRing = false // it is not waited for
		}
	}
	answer.OnRing = onRing
	if answer.Node != nil && !r.Look {
		done, err := l.o.Fleet.DrainNode(ctx, &ballastv1.NodeRequest{Node: name, Force: r.Force})
		if err != nil {
			return nil, err
		}
		answer.Changes = append(answer.Changes, done.Changes...)
	}
	return answer, nil
}

// Drained is what of a node is given no connections: a node that has left and joins again stays drained, as operators also drain those that are to
// join later. Each line names the command that ends this.
func (l *Leaving) Drained(ctx context.Context, who *pki.Identity) (lines []string) {
	if who.Role == pki.Agent {
		for _, s := range l.o.Engine.ServersOf(*who) {
			if s.Server.Name != "" && s.Server.State != model.StateActive {
				lines = append(lines, fmt.Sprintf("server %s of %s is %s: `ballast ctl server undrain %s %s`", s.Server.Name, s.Service, s.Server.State, s.Service, s.Server.Name))
			}
		}
		return lines
	}
	if now := l.o.Mirror.Now(); now != nil {
		i := slices.IndexFunc(now.Nodes.Nodes, func(n model.Node) bool { return n.Name == who.Name })
		if i >= 0 && now.Nodes.Nodes[i].State != model.StateActive {
			lines = append(lines, fmt.Sprintf("node %s is %s: `ballast ctl node undrain %s`", who.Name, now.Nodes.Nodes[i].State, who.Name))
		}
	}
	ring, err := l.o.Fleet.ListReplicas(ctx, &ballastv1.ListReplicasRequest{})
	if err != nil {
		return lines
	}
	if i := slices.IndexFunc(ring.Nodes, func(n *ballastv1.ReplicaStatus) bool { return n.Name == who.Name }); i >= 0 && ring.Needed && slices.Contains([]string{"draining", "drained"}, ring.Nodes[i].State) {
		lines = append(lines, fmt.Sprintf("%s keeps no connections of others on the ring: `ballast ctl replica undrain %s`", who.Name, who.Name))
	}
	return lines
}

// Leave implements ballastv1connect.LeavingHandler. It forgets first: who is revoked hears no answer but that for long. Who shows the newest
// certificate of a name is forgotten, and where the name has not joined by a token in that role, who shows any. It revokes the certificate that is
// shown, and no other: nobody ends another's by a copy of an older one, and the entry is listed until that certificate has ended, not as long as one
// of a name.
func (l *Leaving) Leave(ctx context.Context, _ *ballastv1.LeaveRequest) (*ballastv1.LeaveResponse, error) {
	who := ctx.Value(caller{}).(pki.Identity)
	by, _ := api.CallerOf(ctx)
	now := l.o.Mirror.Now()
	if now == nil {
		return nil, connect.NewError(connect.CodeUnavailable, desired.ErrUnknown)
	}
	answer := &ballastv1.LeaveResponse{}
	if joined := now.Enrolled[who.Name]; joined == nil || joined.Role != who.Role || slices.Equal(joined.Chain[0], by.Certificate.Raw) {
		forgotten, err := l.forget(ctx, &who)
		switch {
		case err == nil:
			answer.Changes = forgotten
		case connect.CodeOf(err) != connect.CodeNotFound:
			answer.Remains = append(answer.Remains, api.TextOf(err))
		}
	} else {
		answer.Remains = append(answer.Remains, fmt.Sprintf("%s has a newer certificate as %s: if nobody uses it, `ballast ctl pki revoke %s%s`, then `ballast ctl node forget %s`",
			who.Name, who.Role, who.Name, " --role "+who.Role, who.Name))
	}
	revoked, err := l.o.Revoke(ctx, &ballastv1.RevokeCertificateRequest{Serial: pki.SerialOf(by.Certificate), Reason: "it has left", Force: true, LockOut: true})
	if err != nil {
		return nil, err
	}
	answer.Changes, answer.Revision = append(answer.Changes, revoked.Changes...), revoked.Revision
	return answer, nil
}

// forget waits for the end of a stream that was just closed.
func (l *Leaving) forget(ctx context.Context, who *pki.Identity) (changes []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, endsWithin)
	defer cancel()
	for look := time.NewTicker(lookEvery); ; {
		if changes, err = l.o.Forget(ctx, false, who.Name, who.Role); connect.CodeOf(err) != connect.CodeFailedPrecondition || err == nil {
			look.Stop()
			return changes, err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			look.Stop()
			return nil, err
		}
	}
}
