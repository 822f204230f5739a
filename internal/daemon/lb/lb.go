// Package lb is the process `ballast lb`: it starts what a load balancer is made of, and carries out changes of its desired state.
package lb

import (
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/console"
	"github.com/ballast-lb/ballast/internal/daemon/instance"
	"github.com/ballast-lb/ballast/internal/daemon/lb/bgp"
	"github.com/ballast-lb/ballast/internal/daemon/lb/checks"
	"github.com/ballast-lb/ballast/internal/daemon/lb/clocks"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/lb/decider"
	"github.com/ballast-lb/ballast/internal/daemon/lb/explain"
	"github.com/ballast-lb/ballast/internal/daemon/lb/l2"
	"github.com/ballast-lb/ballast/internal/daemon/lb/liveness"
	"github.com/ballast-lb/ballast/internal/daemon/lb/replication"
	"github.com/ballast-lb/ballast/internal/daemon/lb/sweeper"
	"github.com/ballast-lb/ballast/internal/daemon/lb/synproxy"
	"github.com/ballast-lb/ballast/internal/daemon/lb/tracing"
	"github.com/ballast-lb/ballast/internal/daemon/renewal"
	"github.com/ballast-lb/ballast/internal/daemon/revocations"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Options are what `ballast lb` is started with.
type Options struct {
	// Config is the path of the configuration file that the node runs by; empty: by Controllers.
	Config      string
	Controllers []string // host:port of each
	Listen      string   // with Config: TCP address for agents' load reports, empty: none
	TLSDir      string   // certificates, with Controllers or Listen
	Name        string   // of this node, in the fleet's nodes and in its certificate
	PeerAddress string   // with Controllers: address or address:port that other load balancers reach it at; empty: one that tunnels come from

	Instance   string   // names the socket, the pins and the state
	Interfaces []string // devices that packets come in by; empty: those of the default routes
	XDPMode    attach.XDPMode
	RunDir     string // sockets and pins
	StateDir   string // what must survive a restart of the machine
	Metrics    string // TCP address for Prometheus, empty: none
	Console    string // TCP address of the console, empty: none
	// ConsoleToken is a file with the token that people log in with; empty: certificates let them in, and on loopback everybody is.
	ConsoleToken string
	ExecChecks   string // directory of the programs that exec checks may run; empty: none with Controllers, any with Config
	FlowLog      string // file for connections that end, -: standard output, empty: none
	Limits       plan.Limits
	Timing       fleet.Timing
	Version      string
	Log          *slog.Logger
}

// parts are what a load balancer is made of. Each has a lock of its own, or needs none.
type parts struct {
	options     Options
	log         *slog.Logger
	name        string           // of this node
	peerAddress netip.AddrPort   // options.PeerAddress
	credentials *pki.Credentials // with controllers or agents to talk to

	tables      *dataplane.Tables
	programs    programs
	clocks      clocks.Clocks
	sweeper     *sweeper.Sweeper
	checks      *checks.Checks
	tracer      *tracing.Tracer
	explainer   *explain.Explainer
	local       *decider.Local                // with a file: decides in this process
	alone       atomic.Pointer[decider.Local] // without: judges while no controller does; nil: they do
	controllers *nodeclient.Client            // without
	revocations *revocations.List             // as well
	renewal     *renewal.Renewal              // as well
	replication *replication.Replication      // as well
	liveness    *liveness.Responder
	bgp         *bgp.Announcer
	l2          *l2.Announcer
	synProxy    *synproxy.Guard
	console     *console.Console // nil: none
}

// How often what only time changes is looked at.
const agePeriod = time.Second

func (p *parts) pins() string { return instance.PinDir(p.options.RunDir, p.options.Instance) }
