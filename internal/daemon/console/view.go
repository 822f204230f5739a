package console

import (
	"context"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// Source is what a console asks its daemon for. All of it is safe for concurrent use, and none of it changes anything.
type Source struct {
	// View tells what the daemon knows now. It waits for nobody.
	View func(context.Context) View
	// Diff tells what changed of the fleet from one revision to another, as `ballast ctl fleet diff` does; 0: now. nil: no history is kept.
	Diff func(ctx context.Context, from, to uint64) ([]string, error)
	// Sample has each load balancer look at some packets, or tell the last sample if that is new: who cannot is among them, with the reason. It takes seconds.
	Sample func(context.Context) ([]Sampled, error)
}

// Sampled is what a load balancer found.
type Sampled struct {
	Node    string
	Missing string            // why there is no sample
	Sample  *ballastv1.Sample // nil: none
}

// View is what a daemon knows of the fleet. Keys and other secrets are no part of it.
type View struct {
	Role, Name, Version string
	Revision            uint64
	Problems            []string // that are of no node
	Services            []Service
	Servers             []Server
	Nodes               []*ballastv1.NodeStatus
	Changes             []*ballastv1.FleetChange // oldest first
	NoChanges           string                   // why they are not known; empty: they are
	// Verdicts are packets by verdict, of all services; nil: this daemon sees none.
	Verdicts map[string]uint64
}

// Service is a service, and the connections that were dispatched of it as far as this daemon knows. The count never falls while it lives.
type Service struct {
	model.Service
	Dispatched uint64
}

// Server is a server of a service, and the same of it.
type Server struct {
	*ballastv1.ServerStatus
	Dispatched uint64
}
