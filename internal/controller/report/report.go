// Package report is what a controller says of itself and of its fleet: its status, problems and metrics.
package report

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/discovery"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/controller/election"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

// Options are what a reporter needs.
type Options struct {
	Name, Version string // of this controller
	DataDir       string // of its store; empty: the store is elsewhere
	Credentials   *pki.Credentials
	Mirror        *desired.Mirror
	Election      *election.Election
	Hub           *hub.Hub
	Engine        *engine.Engine
	Store         *etcd.Store // in this process; nil: the state is kept elsewhere
	Refusals      *hub.Refusals
	// Sources are those of services whose servers they name.
	Sources *discovery.Manager
	// TicketProblems and MemberProblems say what is wrong with keys of session tickets, and with the members of the
	// store.
	TicketProblems func(*documents.Snapshot) []string
	MemberProblems func() []string
	// EnrolmentProblems say what keeps certificates of nodes from being signed.
	EnrolmentProblems func() []string
}

// Reporter reports.
type Reporter struct{ o Options }

// New returns a reporter.
func New(o Options) *Reporter { return &Reporter{o} }

// Status answers api.PathStatus.
type Status struct {
	api.Status
	Name        string   `json:"name"`
	Revision    uint64   `json:"revision"` // of the desired state that is known here; 0: none is
	Services    int      `json:"services"`
	Leads       int      `json:"leads"` // of these
	Term        uint64   `json:"term"`  // 0: this controller leads nothing
	Controllers []string `json:"controllers"`
	Nodes       int      `json:"nodes"` // load balancers and agents that are connected
	Problems    []string `json:"problems"`
}

// Obstacles are what keeps this controller from its work, empty: it is ready. Nodes that it has told something go on
// without it.
func (r *Reporter) Obstacles() (found []string) {
	if why := r.o.Mirror.Unknown(); why != "" {
		found = append(found, why)
	}
	if r.o.Credentials.OwnRevoked() != nil {
		return append(found, "its certificate is revoked: nodes leave it, and it leads nothing")
	}
	if !election.Lives(r.o.Name, r.o.Election.Now().Live) {
		found = append(found, "it is not among the controllers that the store takes for alive: the store cannot be reached, or has no quorum")
	}
	return found
}

// Status answers api.PathStatus.
func (r *Reporter) Status() Status {
	now, stops := r.o.Mirror.Now(), r.Obstacles()
	others := r.o.Election.Now()
	s := Status{
		Status: api.Status{Role: string(pki.Controller), Ready: len(stops) == 0, NotReady: slices.Clone(stops), Version: r.o.Version}, Name: r.o.Name, Term: others.Term,
		Controllers: others.Names, Nodes: len(r.o.Hub.Nodes.List()), Problems: slices.Concat(stops, r.Problems(), election.Contested(others.Live), r.FleetProblems()),
	}
	if now != nil {
		s.Revision, s.Services, s.Generation = now.Revision, len(now.Services), now.Revision
		for name := range now.Services {
			if others.Leads(r.o.Name, name) {
				s.Leads++
			}
		}
	}
	return s
}

// Problems are what operators should know of this controller.
func (r *Reporter) Problems() []string {
	problems := r.o.Credentials.Warnings(time.Now())
	if r.o.Mirror.Restored() {
		problems = append(problems, desired.RestoredProblem)
	}
	if problem := roomProblem(r.o.DataDir, roomLeast); problem != "" {
		problems = append(problems, problem)
	}
	problems = append(problems, r.o.TicketProblems(r.o.Mirror.Now())...)
	problems = append(problems, r.o.EnrolmentProblems()...)
	problems = append(problems, r.o.Sources.Problems()...)
	if r.o.Store != nil {
		problems = append(problems, r.o.Store.PeerCondition().Problems()...)
		problems = append(problems, r.o.MemberProblems()...)
	}
	if err := r.o.Mirror.Broken(); err != nil {
		problems = append(problems, fmt.Sprintf("the fleet in the store contradicts itself: nodes are sent nothing new until it is changed: %v", err))
	}
	return problems
}

// Waiting serves the status of a controller that why for its store.
func Waiting(version, name, why string) http.Handler {
	s := api.NewServer()
	s.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) {
		return Status{Status: api.Status{Role: string(pki.Controller), NotReady: []string{why}, Version: version}, Name: name, Problems: []string{why}}, nil
	})
	return s
}
