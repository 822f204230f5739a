package api

import (
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/machine/filtered"
	"github.com/ballast-lb/ballast/internal/model"
)

// Routes of a load balancer's daemon, beside those of every daemon and ballast.v1.Fleet: what is of this node alone.
const (
	PathServices     = "/v1/services"        // GET
	PathConfigDiff   = "/v1/config/diff"     // GET
	PathConfigAction = "/v1/config/{action}" // POST: reload, also of an agent; reset; both also with parameters
	PathTrace        = "/v1/trace"           // GET, a stream of TraceEvent
	PathSessions     = "/v1/sessions"        // GET
	PathMetrics      = "/metrics"            // GET, Prometheus; also by TCP
	PathHealth       = "/healthz"            // GET, by TCP alone: 200 while the daemon does its work
)

// Parameters of reload and reset.
const (
	Force       = "force"        // take what living connections do not survive
	AllowRemove = "allow-remove" // of a reload: take a file that may be half of one
)

// LBStatus is what a load balancer adds to Status.
type LBStatus struct {
	Status
	Interfaces  map[string]string    `json:"interfaces"`             // name -> XDP mode
	Problems    []string             `json:"problems"`               // what is not as wanted, in words
	Controllers []string             `json:"controllers,omitempty"`  // that are connected, of a node that runs by controllers
	Revision    uint64               `json:"revision,omitempty"`     // of the controllers' state that the tables say
	JudgesAlone bool                 `json:"judges_alone,omitempty"` // no controller judges servers: this node does
	Name        string               `json:"name"`                   // of the node
	Filtered    []filtered.Cause     `json:"filtered,omitempty"`     // tunnels that something seems to drop
	SYNProxy    map[string]time.Time `json:"syn_proxy,omitempty"`    // services with syn_proxy auto that is on, and since when
	Tier        *TierStatus          `json:"tier,omitempty"`         // nil: it has none
	Replicas    *ReplicaStatus       `json:"replicas,omitempty"`     // nil: it has nothing to do with other load balancers
}

// ReplicaStatus is a load balancer's part in the replicated table.
type ReplicaStatus struct {
	Number    uint16         `json:"number"`           // of this one; 0: controllers have given it none
	Address   netip.AddrPort `json:"address,omitzero"` // that others reach it at
	OnRing    bool           `json:"on_ring"`
	Version   uint32         `json:"version"`  // of the ring that packets go by; 0: none
	Synced    uint32         `json:"synced"`   // the newest that is known to be synced
	Chain     int            `json:"chain"`    // load balancers of a chain
	Entries   uint64         `json:"entries"`  // of chains that this one is in
	Answers   uint64         `json:"answers"`  // others
	Room      uint64         `json:"room"`     // for each of both
	Expired   uint64         `json:"expired"`  // of both, since the process began
	Uncopied  uint64         `json:"uncopied"` // that a sync had no room for, since then
	Conflicts uint64         `json:"conflicts"`
	Peers     []ReplicaPeer  `json:"peers"`
}

// ReplicaPeer is another load balancer.
type ReplicaPeer struct {
	Name    string         `json:"name"`
	Address netip.AddrPort `json:"address"`
	OnRing  bool           `json:"on_ring"`
	State   string         `json:"state"` // heard, silent, unknown
}

// TierStatus is a load balancer's part in two tiers.
type TierStatus struct {
	Tier    model.Tier       `json:"tier"`
	Address netip.Addr       `json:"address,omitzero"` // second tier: where the first sends to
	ID      uint16           `json:"id,omitempty"`     // second tier: what the cookie's first bits carry
	Second  []SecondTierNode `json:"second,omitempty"` // first tier: the nodes of the second
}

// SecondTierNode is a node of the second tier as one of the first sees it.
type SecondTierNode struct {
	model.Node
	Health       string `json:"health"` // healthy, unhealthy, unknown, unchecked
	HealthDetail string `json:"health_detail,omitempty"`
	Packets      uint64 `json:"packets"` // sent to it, of all services
	Bytes        uint64 `json:"bytes"`
	Path         string `json:"path"` // next hop, or why there is none
}

// ServiceStatus is one service with what it counted.
type ServiceStatus struct {
	model.Service
	Verdicts map[string]Traffic `json:"verdicts"`
	Servers  []ServerStatus     `json:"servers"`
	// TimestampSearches counts packets whose TCP options match none of the usual patterns, and were searched for the timestamp.
	TimestampSearches uint64 `json:"timestamp_searches"`
	// PredecessorConnections estimates how many connections went on to the predecessor within the last minute; nil: there is none.
	PredecessorConnections *int `json:"predecessor_connections,omitempty"`
	// PredecessorPaths are the next hops of the predecessor's addresses, in their order, or why there are none.
	PredecessorPaths []PredecessorPath `json:"predecessor_paths,omitempty"`
	// Nodes are those of the second tier that the service's packets go to from here: servers get none then.
	Nodes []NodeTraffic `json:"nodes,omitempty"`
}

// PredecessorPath is the way to an address of a predecessor.
type PredecessorPath struct {
	Address netip.Addr `json:"address"`
	Path    string     `json:"path"`           // next hop, or why there is none
	Lost    string     `json:"lost,omitempty"` // why packets that go there do not arrive; empty: nothing is known against it, or none go
}

// NodeTraffic is what a node of the first tier sent to one of the second.
type NodeTraffic struct {
	Name        string `json:"name"`
	ID          uint16 `json:"id"`
	Packets     uint64 `json:"packets"`
	Bytes       uint64 `json:"bytes"`
	Connections uint64 `json:"connections"` // dispatched to it
}

// Traffic counts packets and bytes of IP packets.
type Traffic struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// ServerStatus is one server of a service, also a removed one whose connections may still live.
type ServerStatus struct {
	model.Server
	Removed     bool   `json:"removed,omitempty"`
	Packets     uint64 `json:"packets"`
	Bytes       uint64 `json:"bytes"`
	Connections uint64 `json:"connections"` // dispatched by this node
	Open        int32  `json:"open"`        // this node's estimate of those that live
	Path        string `json:"path"`        // next hop, or why there is none
	TakesPart   bool   `json:"takes_part"`  // false: return: through, and its timestamps do not allow a cookie
}

// Changed answers a change: what it did, one line each.
type Changed struct {
	Changes  []string `json:"changes"`
	Warnings []string `json:"warnings,omitempty"` // of a dry run: as ChangeResponse has them
	Live     []string `json:"live,omitempty"`     // as well
}

// Parameters of PathTrace, beside service, client and port.
const (
	TraceHeaders    = "headers" // events have headers
	TraceSample     = "sample"  // N: one of N packets is traced, by chance
	TraceSampleAuto = "auto"    // as few as there is room for, so that the events are a fair sample of all packets
)

// TraceHeadersMost is how many bytes of headers an event has at most.
const TraceHeadersMost = 192

// TraceEvent tells where a packet went and why.
type TraceEvent struct {
	Time        time.Time      `json:"time"`
	Interface   string         `json:"interface"`
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	Protocol    uint8          `json:"protocol"`
	Flags       string         `json:"flags,omitempty"`
	Length      uint16         `json:"length"`
	Service     string         `json:"service,omitempty"`
	Server      string         `json:"server,omitempty"`
	ID          uint16         `json:"id,omitempty"`
	Verdict     string         `json:"verdict"`
	Stops       []string       `json:"stops,omitempty"`
	Timestamp   uint32         `json:"tsval,omitempty"`
	Echo        uint32         `json:"tsecr,omitempty"`
	Session     *TraceSession  `json:"session,omitempty"`    // of a ClientHello, with session tls
	Suppressed  uint32         `json:"suppressed,omitempty"` // events left out before this one
	StandsFor   uint32         `json:"stands_for"`           // packets: one of so many is traced, by chance
	FrameLength uint32         `json:"frame_length,omitempty"`
	Headers     []byte         `json:"headers,omitempty"` // of the frame as it came, from Ethernet to the transport header
}

// TraceSession tells which session a ClientHello resumes, and what came of that.
type TraceSession struct {
	Outcome  string `json:"outcome"`            // as in SessionCounts
	Identity string `json:"identity,omitempty"` // that names the session: psk, ticket, session id; empty: none is shown
	Name     string `json:"name,omitempty"`     // its first 4 bytes, in hex
	ID       uint16 `json:"id,omitempty"`       // of the server that it opens to
}

// SessionCounts answers PathSessions, once for each service with session tls: what came of its handshakes, and of its first packets with data, at this node.
type SessionCounts struct {
	Service    string            `json:"service"`
	Clients    uint8             `json:"session_clients"` // that may show one session; 0: any number
	Answered   uint64            `json:"answered_syn"`
	Handshakes uint64            `json:"dropped_handshake"`
	Hellos     map[string]uint64 `json:"hellos"` // by outcome
}
