package doctor

import (
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/linux/features"
	"github.com/ballast-lb/ballast/internal/linux/mptcp"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/machine/filtered"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Role is what a host is in the fleet.
type Role string

// Roles. Auto: that of the daemon that runs or has run; else, by the file, agent where a server's address is local, else lb.
const (
	RoleUnknown Role = "" // nothing tells it
	RoleAuto    Role = "auto"
	RoleLB      Role = "lb"
	RoleAgent   Role = "agent"

	RoleController Role = "controller" // of a daemon that sees no packets
)

// kernelFacts are what the running kernel and this process may do.
type kernelFacts struct {
	Release      string   // 6.12.117+deb13-cloud-amd64
	Missing      []string // capabilities
	Features     []features.Feature
	Load         error    // of the role's programs
	Rejected     []string // what the verifier said, if that is why
	BPFFS        error
	PrivatePins  string // why pins would end with the daemon
	Grace        error
	JIT          int // net.core.bpf_jit_enable; -1: unknown
	Synchronised bool
}

// deviceFacts are an interface and who is on it.
type deviceFacts struct {
	netdev.Device
	Program   string // name of the attached XDP program
	Ours      bool   // attached by this instance
	Instance  string // another one of the same run directory, that has attached it
	OtherRole bool   // of that instance
	Behind    bool   // our program runs behind that one
	Emulated  bool   // by QEMU, as the machine is

	// Of the interface, in this network namespace; -1: unknown. The kernel uses the larger of this and that of "all".
	ReversePath, ARPIgnore, ARPAnnounce int
	Forwarding4, Forwarding6            int
}

// pathFacts are the way from this host to a server.
type pathFacts struct {
	MTU     int
	Ifindex int   // of the device that next hops leave by
	Err     error // no route, or the neighbour does not answer
	Here    bool  // it is this host
	OnLink  bool  // the next hop is the address itself, and no router

	Asked  bool // whether it answers TCP, with a connection or a refusal
	Silent bool // it did not
}

// clockFacts are what connections to a server of a return: through service showed.
type clockFacts struct {
	Err error // no answer, or without timestamp
	One bool  // all connections have one clock: net.ipv4.tcp_timestamps=2
}

// daemonFacts are what answered on the instance's socket.
type daemonFacts struct {
	SocketThere   bool
	Dead          bool // the socket is what a killed one left
	Err           error
	Role          Role
	Name          string // of a load balancer
	Replicas      *api.ReplicaStatus
	Ready         bool
	NotReady      []string
	Server        string      // name of an agent's servers, if it was given
	Tunnels       api.Tunnels // who may open some to an agent
	Gateways      []api.Gateway
	Probes        []api.ProbedPort   // of an agent
	Translated    *api.TranslatedUse // by an agent
	Fleet         model.Fleet        // that runs, without keys; of an agent with the servers that were removed, as draining
	Left          []string           // services that an agent's host was removed from
	ByControllers bool
	Path          string // of its configuration file
	SHA256        string
	Refused       string
	RefusedSince  *time.Time
	Interfaces    map[string]string // name -> XDP mode
	Problems      []string
	Filtered      []filtered.Cause
	Pinned        bool // a data path is there, with or without daemon
}

// runs tells whether a process holds the socket, whatever it answers.
func (d *daemonFacts) runs() bool { return d.SocketThere && !d.Dead }

// hidden tells whether the daemon's pins are where they are not seen from here: one that is attached always has some.
func (d *daemonFacts) hidden() bool {
	return d.runs() && d.Err == nil && len(d.Interfaces) > 0 && !d.Pinned
}

// keptFacts are what earlier daemons of the instance have left, and who else is here.
type keptFacts struct {
	Pinned    Role // whose the pins are
	States    []statefile.Kept
	Instances []string // others of the same run directory
}

// role is that of the instance's last daemon, if that is sure.
func (k *keptFacts) role() Role {
	switch {
	case k.Pinned != RoleUnknown:
		return k.Pinned
	case len(k.States) == 1:
		return Role(k.States[0].Role)
	}
	return RoleUnknown
}

// hostFacts are the network of a server.
type hostFacts struct {
	Timestamps    int // net.ipv4.tcp_timestamps; -1: unknown
	Microsecond   []string
	MPTCP         []string              // what keeps clients from joining, each with its remedy
	MPTCPPlain    bool                  // others than they can fill the queues where they join
	TakesOver     error                 // why connections that load balancers begin do not come to be here
	LooseTracking int                   // net.netfilter.nf_conntrack_tcp_loose; -1: nobody tracks connections
	Translated    string                // what translates addresses while connections are tracked; empty: nothing, or it is not known
	Untracked     bool                  // the table of the agent is there
	Listeners     []mptcp.Listener      // who speaks MPTCP among them
	Addresses     map[netip.Addr]string // -> device
	DefaultRoutes []netdev.DefaultRoute
	Listening     map[model.Protocol][]netip.AddrPort
	Translation   translationFacts
	Egress        []string       // devices of default routes and routes through a gateway
	EgressBare    []string       // those among them that have no Ethernet addresses
	WaysBack      []string       // both, of IPv4 alone
	Back          map[bool]error // way to clients, of IPv6 or not: there is none, or its next hop does not answer
}

// fileFacts are the configuration file, or what the daemon runs or has run.
type fileFacts struct {
	Path    string
	SHA256  string
	Err     error
	Exposed string
	Fleet   model.Fleet
	Running bool   // Fleet is what the daemon runs
	Kept    string // the state file that Fleet is from, as no daemon answers
}

// known tells whether Fleet is what this host is to do.
func (f *fileFacts) known() bool { return f.Running || f.Kept != "" || f.Path != "" && f.Err == nil }

// facts are all of it. The judges read nothing else.
type facts struct {
	Role      Role
	Instance  string
	Name      string // of a load balancer, among the fleet's nodes
	Kernel    kernelFacts
	Verbose   bool
	File      fileFacts
	Devices   []deviceFacts
	NoDevs    error // why there are no Devices
	Paths     map[netip.Addr]pathFacts
	Exits     []exitFacts
	Clocks    map[netip.AddrPort]clockFacts
	Neighbors map[netip.Addr]neighborFacts // of BGP
	Password  error                        // why there is none for them
	Daemon    daemonFacts
	Kept      keptFacts
	Units     []unitFacts // those of systemd that do not stay up, or should run
	Host      hostFacts
	Mine      func(*model.Server) bool // is it this host?
}

// services calls visit for every service that concerns the role: an lb does all whose servers it sends to, an agent those that it serves
// directly.
func (f *facts) services(visit func(s *model.Service)) {
	var tier model.Tier
	if self := f.self(); self != nil {
		tier = self.Tier
	}
	for i := range f.File.Fleet.Services {
		s := &f.File.Fleet.Services[i]
		if f.Role == RoleLB && !s.SendsToNodes(tier) || f.Role != RoleLB && s.Return == model.ReturnDirect && f.mine(s) != nil {
			visit(s)
		}
	}
}

// destinations calls visit for all that packets of a load balancer go to: the services, and nodes of the second tier as one.
func (f *facts) destinations(visit func(s *model.Service)) {
	f.services(visit)
	if second := f.secondTier(); second != nil {
		visit(second)
	}
}

// mine returns this host's entry among the service's servers, or nil.
func (f *facts) mine(s *model.Service) *model.Server {
	here, _ := plan.ServerHere(s, f.Mine)
	return here
}
