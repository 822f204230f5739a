// What a controller is made of.
package controller

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/controller/bootstrap"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/discovery"
	"github.com/ballast-lb/ballast/internal/controller/election"
	"github.com/ballast-lb/ballast/internal/controller/enrolment"
	"github.com/ballast-lb/ballast/internal/controller/findings"
	"github.com/ballast-lb/ballast/internal/controller/fleetapi"
	"github.com/ballast-lb/ballast/internal/controller/leaving"
	"github.com/ballast-lb/ballast/internal/controller/members"
	"github.com/ballast-lb/ballast/internal/controller/nodes"
	"github.com/ballast-lb/ballast/internal/controller/replicas"
	"github.com/ballast-lb/ballast/internal/controller/report"
	"github.com/ballast-lb/ballast/internal/controller/revoked"
	"github.com/ballast-lb/ballast/internal/controller/tickets"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// controller is the process.
type controller struct {
	name, version string
	log           *slog.Logger
	credentials   *pki.Credentials
	store         openedStore
	ready         func(address string) // nil: nobody waits for that

	mirror    *desired.Mirror
	editor    desired.Editor
	ager      *desired.Ager
	hub       *hub.Hub
	engine    *engine.Engine
	election  *election.Election
	findings  *findings.Findings
	balancers *nodes.Balancers
	ring      *replicas.Manager
	tickets   *tickets.Manager
	sources   *discovery.Manager
	revoked   *revoked.List
	members   *members.Cluster
	fleet     *fleetapi.Fleet
	enrolment *enrolment.Enrolment
	leaving   *leaving.Leaving
	report    *report.Reporter
}

func newController(
	o Options,
	credentials *pki.Credentials,
	s openedStore,
	address string,
	ports *bootstrap.Ports,
) *controller {
	name := credentials.Identity().Name
	mirror := desired.NewMirror(s.Store, o.Log)
	writer := desired.NewWriter(mirror)
	c := &controller{name: name, version: o.Version, log: o.Log, credentials: credentials, store: s, ready: o.Ready,
		mirror: mirror, editor: desired.NewEditor(writer), ager: desired.NewAger(writer, o.Timing)}
	c.findings = findings.New(findings.Options{Name: name, Mirror: mirror, Editor: c.editor, Log: o.Log,
		Servers: func(service string) []engine.ServerStatus { return c.engine.Servers(service) },
		Writing: func(writes bool) { c.election.SetWriting(writes) }})
	c.engine = engine.New(engine.Options{
		Weigh: func(service string, update *follow.Update) { c.hub.Topics.SetWeights(service, update) },
		Count: func(service string, counts *follow.Counts, shares map[string]float64) {
			c.hub.Topics.SetCounts(service, counts, shares)
		},
		Loads: func(service string, loads *follow.Loads, shares map[string]float64) {
			c.hub.Topics.SetLoads(service, loads, shares)
		},
		Down: c.findings.SetHealth, Off: c.findings.EndDrain,
		Checks: func(checks map[string][]string) { c.hub.Topics.SetChecks(checks) },
		Log:    o.Log,
	})
	c.hub = hub.New(hub.Options{Name: name, Version: o.Version, Reports: c.engine, Limits: o.Limits, Log: o.Log,
		Changed: c.nodesChanged, Replicated: func() { c.ring.Wake() }, Credentials: credentials, Newest: writer.Newest})
	c.hub.Topics.SetJudging(false) // before it leads
	c.election = election.New(election.Options{
		Self: store.Member{
			Name:    name,
			Address: address,
			Version: o.Version,
		}, Addresses: func() []netip.Addr { return credentials.Identity().Addresses },
		Store: s.Store, Mirror: mirror, Writer: writer, Revoked: func() bool { return credentials.OwnRevoked() != nil },
		Lead: c.engine.Lead, Judge: c.hub.Topics.SetJudging, Live: c.hub.Topics.SetControllers, Log: o.Log,
	})
	c.balancers = nodes.NewBalancers(mirror, writer, c.hub.Nodes.Remember, o.Log)
	c.ring = replicas.New(
		replicas.Options{Name: name, Store: s.Store, Mirror: mirror, Writer: writer, Leads: c.election.Leads,
			LeaderOf: func(what string) string { return c.election.Now().LeaderOf(what) }, Hub: c.hub, Log: o.Log},
	)
	c.tickets = tickets.New(
		tickets.Options{Name: name, Mirror: mirror, Writer: writer, Leads: c.election.Leads, Nodes: c.hub.Nodes.Keys,
			Settle: cmp.Or(o.TicketSettle, rotation.TicketSettle), Log: o.Log},
	)
	c.sources = discovery.New(discovery.Options{Name: name, Mirror: mirror, Editor: c.editor, Log: o.Log, Asking: o.Asking,
		LeaderOf: func(service string) string { return c.election.Now().LeaderOf(service) }})
	c.members = members.New(
		members.Options{
			Name:        name,
			Address:     address,
			Store:       s.cluster,
			Shown:       ports.Shown(),
			Live:        c.live,
			Credentials: credentials,
			Log:         o.Log,
		},
	)
	c.report = report.New(
		report.Options{
			Name:              name,
			Version:           o.Version,
			DataDir:           o.DataDir,
			Credentials:       credentials,
			Mirror:            mirror,
			Election:          c.election,
			Hub:               c.hub,
			Engine:            c.engine,
			Store:             s.cluster,
			Refusals:          ports.Refusals(),
			TicketProblems:    c.tickets.Problems,
			Sources:           c.sources,
			MemberProblems:    c.members.RevokedMembers,
			EnrolmentProblems: func() []string { return c.enrolment.Problems() },
		},
	)
	directory := c.newFleet(o, writer, address)
	c.enrolment = enrolment.New(enrolment.Options{Name: name, Version: o.Version, Address: address, Mirror: mirror, Writer: writer, Credentials: credentials, Live: c.live,
		Nodes: directory.List, Drained: func(ctx context.Context, who *pki.Identity) []string { return c.leaving.Drained(ctx, who) },
		Refused: func(from string, why error) { ports.Refusals().Refused(pki.NotJoined, from, why) }, Log: o.Log})
	c.leaving = leaving.New(leaving.Options{Fleet: api.Fleet(c.fleet), Engine: c.engine, Mirror: mirror, Revoke: c.fleet.RevokeCertificate, Forget: c.fleet.ForgetNode})
	return c
}

// newFleet makes what operators ask.
func (c *controller) newFleet(o Options, writer *desired.Writer, address string) *nodes.Directory {
	listed := nodes.Options{
		Name:     c.name,
		Address:  address,
		Version:  o.Version,
		Began:    time.Now(),
		Mirror:   c.mirror,
		Election: c.election,
		Joined:   c.hub.Nodes,
		Engine:   c.engine,
		Self:     func() (obstacles, problems []string) { return c.report.Obstacles(), c.report.Problems() },
	}
	if c.store.cluster != nil {
		listed.HasPeer = c.store.cluster.HasPeer
	}
	directory := nodes.NewDirectory(listed)
	revocations := revoked.Options{
		Name:        c.name,
		Mirror:      c.mirror,
		Writer:      writer,
		Hub:         c.hub,
		Credentials: c.credentials,
		Log:         o.Log,
	}
	c.revoked = revoked.NewList(revocations)
	c.fleet = fleetapi.New(
		fleetapi.Options{
			Mirror: c.mirror,
			Writer: writer,
			Editor: c.editor,
			Joined: c.hub.Nodes,
			Engine: c.engine,
			Nodes:  directory,
			Forgetter: nodes.NewForgetter(
				nodes.ForgetOptions{Name: c.name, Joined: c.hub.Nodes, Election: c.election, Credentials: c.credentials,
					ForgetReplica: c.ring.Forget, Changed: c.nodesChanged, Log: o.Log},
			),
			Ring:    c.ring,
			Tickets: c.tickets,
			Sources: c.sources,
			Revoked: c.revoked,
			Revoker: revoked.NewRevoker(
				revoked.RevokerOptions{
					Options:   revocations,
					Live:      c.live,
					Departure: c.members.Departure,
					Nodes:     directory.List,
				},
			),
		},
	)
	return directory
}

// live are the controllers that live, as far as is known here.
func (c *controller) live() []store.Member { return c.election.Now().Live }

// nodesChanged is called when nodes have come or gone.
func (c *controller) nodesChanged() {
	c.engine.SetLoadBalancers(c.hub.Nodes.LoadBalancers())
	c.balancers.Wake()
}
