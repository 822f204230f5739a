package console

import (
	"context"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// Source tells what a daemon knows now. It waits for nobody.
type Source func(context.Context) View

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
