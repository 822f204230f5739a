package schema

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

type (
	fleet   = model.Fleet
	service = model.Service
	table   = model.Table
	choices = model.Choices
	quic    = model.QUIC
	mptcp   = model.MPTCP
	copies  = model.Replicas
	load    = model.Load
	health  = model.Health
	server  = model.Server
	node    = model.Node
	bgp     = model.BGP
)

// Service are the fields of a service but its servers.
var Service = slices.Concat([]Field[service]{
	{Key: "name", Value: name(func(s *service) *string { return &s.Name }),
		Doc: "its name in `ctl`, metrics and logs"},
	{Key: "vip", Value: address(func(s *service) *netip.Addr { return &s.VIP }),
		Doc: "address that clients connect to, IPv4 or IPv6", More: "Not one that controllers and nodes use among themselves"},
	{Key: "destinations", Value: prefix(func(s *service) *model.Prefix { return &s.Destinations }), Clear: true,
		Doc: "with `protocol: any`, instead of `vip` and `ports`: addresses that are for network functions", More: "See \"Network functions\" in `docs/features/replicas.md`"},
	{Key: "protocol", Value: choice(func(s *service) *model.Protocol { return &s.Protocol }), Default: "tcp",
		Doc: "what clients speak", More: "`any`: TCP, UDP and ICMP echo, of network functions"},
	{Key: "ports", Value: list(func(s *service) *[]uint16 { return &s.Ports }, "ports", fmt.Sprintf("1 to %d ports", model.MaxPorts), ",", "%v",
		func(text string) (uint16, error) { return model.ParseNumber[uint16](text, 1, math.MaxUint16) }),
		Doc: "ports that clients connect to"},
	{Key: "dispatch", Value: choice(func(s *service) *model.Dispatch { return &s.Dispatch }), Default: "rr; maglev with `affinity: hash`",
		Doc: "who gets a new connection", More: "See `docs/features/policies.md`. With `affinity: hash` only `maglev`, `hash` and `wcmp`"},
	{Key: "affinity", Value: choice(func(s *service) *model.Affinity { return &s.Affinity }), Default: "cookie; hash for udp",
		Doc: "how later packets find their server",
		More: "`table`: a cookie and an entry per connection (`docs/features/connection-table.md`), TCP with `return: direct` only. " +
			"`replicated`: an entry of a table that load balancers replicate (`docs/features/replicas.md`), needs controllers. " +
			"`hash` and `local-table` are baselines: they lose connections when servers, or load balancers, change"},
	{Key: "fallback", Value: choice(func(s *service) *model.Fallback { return &s.Fallback }), Default: "second-chance; hash for udp and `return: through`",
		Doc: "what happens without a cookie", More: "`second-chance`: servers hand on what is not theirs. `replicated`: as with that affinity"},
	{Key: "cookie_bits", Value: number(func(s *service) *uint8 { return &s.CookieBits }, "bits", model.MinCookieBits, model.MaxCookieBits),
		Default: fmt.Sprintf("%d; %d with `return: through`, always; %d with `table.node_bits`", model.DirectCookieBits, model.ThroughBits, model.MaxCookieBits),
		Doc:     "width of the cookie", More: "2^(bits-1)-1 ids; with `affinity: table` 2^(bits-1-node_bits-index_bits)-1"},
	{Key: "forward", Value: choice(func(s *service) *model.Forward { return &s.Forward }), Default: "ipip; nat with `return: through`",
		Doc: "how packets reach servers"},
	{Key: "return", Value: choice(func(s *service) *model.Return { return &s.Return }), Default: "direct",
		Doc: "the way of answers", More: "Past the load balancer, or through it"},
	{Key: "table_slots", Value: number(func(s *service) *uint32 { return &s.TableSlots }, "slots", 1, math.MaxUint32), Default: fmt.Sprint(model.DefaultSlots),
		Values: strings.ReplaceAll(strings.Trim(fmt.Sprint(model.TableSizes()), "[]"), " ", ", "),
		Doc:    "size of the placement table"},
	{Key: "session", Value: choice(func(s *service) *model.Session { return &s.Session }), Default: "none",
		Doc: "what keeps several connections of a client at one server", More: "`tls`: its TLS session. See `docs/features/sessions.md`"},
	{Key: "session_clients", Value: number(func(s *service) *uint8 { return &s.SessionClients }, "addresses", 0, model.MaxSessionClients),
		Default: fmt.Sprint(model.DefaultSessionClients),
		Doc:     "clients that reach a server by one session, with `session: tls`", More: "Further addresses in 9 minutes (IPv6: networks of 64 bits) go by the policy. 0: no limit"},
},
	Section("table", Table, func(s *service) *table { return &s.Table }),
	Section("choices", Choices, func(s *service) *choices { return &s.Choices }),
	Section("quic", QUIC, func(s *service) *quic { return &s.QUIC }),
	Section("mptcp", MPTCP, func(s *service) *mptcp { return &s.MPTCP }),
	Section("load", Load, func(s *service) *load { return &s.Load }),
	Section("health", Health, func(s *service) *health { return &s.Health }),
)

// Table are the fields of a service's connection table.
var Table = []Field[table]{
	{Key: "entries", Value: number(func(t *table) *uint32 { return &t.Entries }, "number", model.MinEntries, model.MaxEntries), Default: fmt.Sprint(model.DefaultEntries),
		Doc: "connections with an entry at a time, with `affinity: table`", More: "32 bytes each (48 for IPv6). Further connections work without an entry. " +
			"The sum over all services is limited by `--max-entries`"},
	{Key: "index_bits", Value: number(func(t *table) *uint8 { return &t.IndexBits }, "bits", 1, model.MaxIndexBits), Default: fmt.Sprint(model.DefaultIndexBits),
		Doc: "of the cookie, for the entry's index in its partition", More: "Fewer leave room for more ids, but the table fills unevenly"},
	{Key: "node_bits", Value: number(func(t *table) *uint8 { return &t.NodeBits }, "bits", 0, model.MaxNodeBits), Default: fmt.Sprintf("0; %d with a second tier", model.DefaultNodeBits),
		Doc: "of the cookie, for a second-tier node's id", More: "2^bits-1 nodes"},
	{Key: "idle_timeout", Value: span(func(t *table) *model.Duration { return &t.IdleTimeout }, model.MinIdleTimeout, model.MaxIdleTimeout), Default: short(model.DefaultIdleTimeout),
		Doc: "a connection silent for this long loses its entry", More: "It gets another with its next packet"},
	{Key: "packet_limit", Value: number(func(t *table) *uint32 { return &t.PacketLimit }, "packets", 0, model.MaxPacketLimit), Default: "0: none",
		Doc: "packets per connection and second", More: "More are dropped. A second is 1.07 s"},
	{Key: "scrubber", Value: text(func(t *table) *string { return &t.Scrubber }), Clear: true,
		Doc: "server of weight 0 that suspects' packets visit first", More: "Its address is of the other servers' family. Needs `fallback: second-chance`"},
}

// Choices are the fields of dispatch choices.
var Choices = []Field[choices]{
	{Key: "candidates", Value: number(func(c *choices) *uint8 { return &c.Candidates }, "number", model.MinCandidates, model.MaxCandidates), Default: fmt.Sprint(model.DefaultCandidates),
		Doc: "servers that a new connection is offered to, with `dispatch: choices`", More: "See `docs/features/policies.md`"},
	{Key: "history", Value: number(func(c *choices) *uint8 { return &c.History }, "number", 1, model.MaxHistory), Default: fmt.Sprint(model.DefaultHistory),
		Doc: "owners of a candidate's place that are remembered", More: "The present one among them"},
	{Key: "accept.policy", Value: choice(func(c *choices) *model.AcceptPolicy { return &c.Accept.Policy }), Default: "dynamic",
		Doc: "how a candidate decides", More: "The last one accepts always"},
	{Key: "accept.load", Value: choice(func(c *choices) *model.AcceptLoad { return &c.Accept.Load }), Default: "connections",
		Doc: "the load that it decides by", More: "Live connections of the service, its accept queue, percent of CPU in use plus of time in which a task waits for one, `load.endpoint`"},
	{Key: "accept.threshold", Value: number(func(c *choices) *uint32 { return &c.Accept.Threshold }, "load", 1, math.MaxUint32), Default: "1 with `dynamic`, where it begins",
		Doc: "load from which on a candidate passes on"},
	{Key: "accept.window", Value: number(func(c *choices) *uint16 { return &c.Accept.Window }, "offers", 1, math.MaxUint16), Default: fmt.Sprintf("%d with `dynamic`", model.DefaultWindow),
		Doc: "offers after which `dynamic` may move the threshold"},
	{Key: "accept.margin", Value: number(func(c *choices) *uint8 { return &c.Accept.Margin }, "percent", 1, 49), Default: fmt.Sprintf("%d with `dynamic`", model.DefaultMargin),
		Doc: "`dynamic` keeps the threshold while it accepts half of the offers", More: "Give or take this many percent of them"},
}

// QUIC are the fields of connection ids.
var QUIC = []Field[quic]{
	{Key: "algorithm", Value: choice(func(q *quic) *model.QUICAlgorithm { return &q.Algorithm }), Default: "single-pass",
		Doc: "how connection ids hide the server, with `affinity: quic`", More: "See `docs/features/quic.md`. `plain` hides nothing"},
	{Key: "server_id_length", Value: number(func(q *quic) *uint8 { return &q.ServerIDLength }, "bytes", 1, model.MaxQUICServerIDLength), Default: fmt.Sprint(model.DefaultServerIDLength),
		Doc: "of the server's id in connection ids", More: "1 byte: ids up to 255, and what clients draw themselves names a server by chance (`docs/features/quic.md`, Limits)"},
	{Key: "nonce_length", Value: number(func(q *quic) *uint8 { return &q.NonceLength }, "bytes", model.MinQUICNonceLength, model.MaxQUICNonceLength),
		Default: fmt.Sprintf("%d; what fills %d with `single-pass`", model.DefaultNonceLength, model.SinglePassLength),
		Doc:     "of the random bytes behind it", More: fmt.Sprintf("Both together at most %d", model.MaxQUICLength)},
}

// MPTCP are the fields of where further subflows go.
var MPTCP = []Field[mptcp]{
	{Key: "first_port", Value: number(func(m *mptcp) *uint16 { return &m.FirstPort }, "port", 1, math.MaxUint16),
		Doc: "of the ports of the vip that further subflows of MPTCP connections join at", More: "See `docs/features/mptcp.md`. Each port names one server. None: no subflow joins through load balancers"},
	{Key: "ports", Value: number(func(m *mptcp) *uint16 { return &m.Ports }, "ports", 1, math.MaxUint16), Default: fmt.Sprint(model.DefaultJoinPorts),
		Doc: "how many there are", More: "Ids of servers go up to this number"},
}

// Load are the fields of how the load of servers is measured.
var Load = []Field[load]{
	{Key: "source", Value: choice(func(l *load) *model.LoadSource { return &l.Source }), Default: "connections; endpoint with `load.endpoint`",
		Doc: "the load that `awrr`, `awfd` and `lcf` go by", More: "Other policies ignore it"},
	{Key: "interval", Value: span(func(l *load) *model.Duration { return &l.Interval }, model.MinLoadInterval, model.MaxLoadInterval), Default: "250ms",
		Doc: "between reports of load, and between updates of weights"},
	{Key: "classes", Value: number(func(l *load) *uint8 { return &l.Classes }, "number", 0, model.MaxClasses), Default: fmt.Sprint(model.DefaultClasses),
		Doc: "classes of servers of `awfd`", More: "0 is ECMP, 1 is `lcf`"},
	{Key: "queue_limit", Value: number(func(l *load) *uint32 { return &l.QueueLimit }, "requests", 1, math.MaxUint32), Default: "128",
		Doc: "requests that a server of weight 1 can hold"},
	{Key: "endpoint", Value: text(func(l *load) *string { return &l.Endpoint }), Values: "URL",
		Doc: "where applications report load, with `source: endpoint`", More: "`http://:8080/load` is asked of each server, `http://host:8080/load` once for all"},
}

// Health are the fields of how servers are checked.
var Health = []Field[health]{
	{Key: "check", Value: choice(func(h *health) *model.Check { return &h.Check }), Default: "none",
		Doc: "how health is found out", More: "See \"Health checks\""},
	{Key: "interval", Value: span(func(h *health) *model.Duration { return &h.Interval }, model.MinCheckTime, model.MaxCheckTime), Default: "2s",
		Doc: "between checks of a server by one load balancer", More: "Jitter: a tenth"},
	{Key: "timeout", Value: span(func(h *health) *model.Duration { return &h.Timeout }, model.MinCheckTime, model.MaxCheckTime), Default: "1s, or a shorter interval",
		Doc: "of one check", More: "At most the interval"},
	{Key: "rise", Value: number(func(h *health) *uint8 { return &h.Rise }, "number", 1, math.MaxUint8), Default: "2",
		Doc: "successes in a row until a server is healthy again"},
	{Key: "fall", Value: number(func(h *health) *uint8 { return &h.Fall }, "number", 1, math.MaxUint8), Default: "3",
		Doc: "failures in a row until a server is unhealthy"},
	{Key: "port", Value: number(func(h *health) *uint16 { return &h.Port }, "port", 1, math.MaxUint16), Default: "the service's first; the server's with `nat`; none for nodes",
		Doc: "port that is checked"},
	{Key: "path", Value: text(func(h *health) *string { return &h.Path }), Default: "/",
		Doc: "`http`, `https`: path to ask for"},
	{Key: "host", Value: text(func(h *health) *string { return &h.Host }),
		Doc: "`http`, `https`: Host header; `https`, `tls`, `grpcs`: also the name in the certificate, not verified without; `grpc`, `grpcs`: the authority"},
	{Key: "service", Value: text(func(h *health) *string { return &h.Service }),
		Doc: "`grpc`, `grpcs`: service name"},
	{Key: "command", Value: list(func(h *health) *[]string { return &h.Command }, "words", "", " ", "%q", func(text string) (string, error) { return text, nil }),
		Doc: "`exec`: program and arguments"},
	{Key: "send", Value: text(func(h *health) *string { return &h.Send }),
		Doc: "`udp`: the datagram to send", More: "A text, or `hex:` and hexadecimal digits; at most 1,200 bytes"},
	{Key: "expect", Value: text(func(h *health) *string { return &h.Expect }),
		Doc: "`udp`: how the answer begins", More: "As `send`. Without: any answer will do"},
	{Key: "contains", Value: text(func(h *health) *string { return &h.Contains }),
		Doc: "`udp`: what the answer contains", More: "As `send`"},
	{Key: "query", Value: text(func(h *health) *string { return &h.Query }),
		Doc: "`dns`: name and type to ask for", More: "As in `example.com A`"},
	{Key: "rcode", Value: text(func(h *health) *string { return &h.RCode }),
		Doc: "`dns`: the response code expected", More: "Without: NOERROR, and a record"},
	{Key: "all_down", Value: choice(func(h *health) *model.AllDown { return &h.AllDown }), Default: "keep",
		Doc: "who gets new connections when nobody is healthy", More: "`keep`: the last healthy set; `withdraw`: the same, and BGP withdraws the VIP (`docs/run/bgp.md`); `all`: all; `none`: nobody"},
	{Key: "deadline", Value: scalar(func(h *health) *model.Duration { return &h.Deadline }, "duration", "", parseDuration, model.Duration.String), Default: "0s: never",
		Doc: "the connections of a server that is unhealthy for that long are cut"},
}

// Server are the fields of a server.
var Server = []Field[server]{
	{Key: "name", Value: name(func(s *server) *string { return &s.Name }), Default: "the address",
		Doc: "its name in `ctl`, metrics and logs"},
	{Key: "address", Value: address(func(s *server) *netip.Addr { return &s.Address }),
		Doc: "its own address, not a VIP"},
	{Key: "port", Value: number(func(s *server) *uint16 { return &s.Port }, "port", 1, math.MaxUint16), Default: "the port that the client asked for",
		Doc: "port of the server, with `forward: nat`"},
	{Key: "id", Value: number(func(s *server) *uint16 { return &s.ID }, "number", 1, 1<<(model.MaxCookieBits-1)-1), Values: "1 to what `cookie_bits` leave room for",
		Default: "by `ctl` the one it had, or the next free one",
		Doc:     "what cookies and the local table carry", More: "Required for `affinity: cookie`, `table` and `local-table`. " +
			"The same on every node. Never given to another server while the old one's connections may live"},
	{Key: "weight", Value: number(func(s *server) *uint16 { return &s.Weight }, "number", 0, model.MaxWeight), Default: "1",
		Doc: "its part of new connections", More: "0: none, and those that it has stay"},
	{Key: "state", Value: choice(func(s *server) *model.ServerState { return &s.State }), Default: "active",
		Doc: "whether it gets connections", More: "`draining`: no new ones, those that it has stay; `off`: no packets at all, the id stays reserved"},
	{Key: "deadline", Value: moment(func(s *server) *time.Time { return &s.Deadline }), Values: "time like `2026-01-31T23:00:00Z`", Default: "never",
		Doc: "from then on a draining server is off"},
}

// Node are the fields of a load balancer with a tier, or with BGP.
var Node = slices.Concat([]Field[node]{
	{Key: "name", Value: name(func(n *node) *string { return &n.Name }),
		Doc: "by its certificate, or `--name`"},
	{Key: "tier", Value: choice(func(n *node) *model.Tier { return &n.Tier }),
		Doc: "its tier", More: "`first` sends connections of services with `affinity: table` to nodes of the second tier, which keep their tables"},
	{Key: "address", Value: address(func(n *node) *netip.Addr { return &n.Address }),
		Doc: "where the first tier sends to", More: "Second tier only. An own address of the node, not a VIP's or a server's"},
	{Key: "id", Value: number(func(n *node) *uint16 { return &n.ID }, "number", 1, 1<<model.MaxNodeBits-1), Values: "1 to 2^node_bits-1", Default: "by `ctl` the next free one",
		Doc: "what cookies carry", More: "Second tier only. The same on every node. Should not change, but nothing breaks if it does"},
	{Key: "state", Value: choice(func(n *node) *model.ServerState { return &n.State }), Default: "active",
		Doc: "whether it gets connections", More: "Second tier: `draining`: no new ones, those that it has stay; `off`: no packets from the first tier. With `bgp`: both announce nothing"},
}, Section("bgp", BGP, func(n *node) *bgp { return &n.BGP }))

// BGP are the fields of how a load balancer announces VIPs.
var BGP = []Field[bgp]{
	{Key: "as", Value: number(func(b *bgp) *uint32 { return &b.AS }, "number", 1, math.MaxUint32),
		Doc: "this load balancer's AS", More: "With `bgp` it announces VIPs to routers. See `docs/run/bgp.md`"},
	{Key: "router_id", Value: address(func(b *bgp) *netip.Addr { return &b.RouterID.Addr }), Default: "its address towards the first neighbour with an IPv4 address",
		Doc: "its BGP identifier, an IPv4 address", More: "Every load balancer has its own"},
	{Key: "neighbors", Value: list(func(b *bgp) *[]model.Neighbor { return &b.Neighbors }, "neighbors", "addresses of routers, with their AS: `10.0.0.1 as 64512`", ",", "%v", model.ParseNeighbor),
		Doc: "the routers", More: "Sessions over IPv6 carry VIPs of both families, if the router takes them (RFC 8950); those over IPv4 carry IPv4 VIPs"},
	{Key: "neighbor_as", Value: number(func(b *bgp) *uint32 { return &b.NeighborAS }, "number", 1, math.MaxUint32),
		Doc: "the AS of neighbours without one"},
	{Key: "listen_port", Value: number(func(b *bgp) *uint16 { return &b.ListenPort }, "port", 1, math.MaxUint16), Default: "none: it only connects",
		Doc: "where routers may connect to", More: "179 by the standard"},
	{Key: "password_file", Value: text(func(b *bgp) *string { return &b.PasswordFile }), Values: "path", Clear: true,
		Doc: "file on the load balancer with the password of all its sessions (TCP MD5, RFC 2385)", More: "Mode 600. Read again when it changes"},
	{Key: "hold_time", Value: span(func(b *bgp) *model.Duration { return &b.HoldTime }, model.MinHoldTime, model.MaxHoldTime), Default: short(model.DefaultHoldTime),
		Doc: "a session is down after so long without a word"},
	{Key: "keepalive", Value: span(func(b *bgp) *model.Duration { return &b.Keepalive }, model.Duration(time.Second), model.MaxHoldTime), Default: "a third of `hold_time`",
		Doc: "between words"},
	{Key: "connect_retry", Value: span(func(b *bgp) *model.Duration { return &b.ConnectRetry }, model.MinConnectRetry, model.Duration(time.Hour)), Default: short(model.DefaultConnectRetry),
		Doc: "between attempts to connect"},
	{Key: "restart_time", Value: span(func(b *bgp) *model.Duration { return &b.RestartTime }, model.Duration(time.Second), model.MaxRestartTime), Default: short(model.DefaultRestartTime),
		Doc: "routers keep the routes for so long while the daemon restarts (RFC 4724)"},
	{Key: "multihop", Value: number(func(b *bgp) *uint8 { return &b.Multihop }, "TTL", 1, math.MaxUint8), Default: "1: neighbours are on a link of this host",
		Doc: "TTL of sessions with another AS"},
	{Key: "ttl_security", Value: number(func(b *bgp) *uint8 { return &b.TTLSecurity }, "hops", 1, 254), Default: "none",
		Doc: "hops that neighbours are away at most (GTSM, RFC 5082)", More: "On a link 1. The router must do the same"},
	{Key: "communities", Value: list(func(b *bgp) *[]model.Community { return &b.Communities }, "communities", "`\"64512:100\"`, `no-export`, ...", ",", "%v", model.ParseCommunity),
		Doc: "of all routes"},
	{Key: "med", Value: number(func(b *bgp) *uint32 { return &b.MED }, "number", 1, math.MaxUint32), Default: "none",
		Doc: "multi-exit discriminator of all routes"},
	{Key: "announce", Value: choice(func(b *bgp) *model.Announce { return &b.Announce }), Default: "able",
		Doc: "which VIPs", More: "`able`: those with a server that this load balancer can send to; `always`: all. Neither while `state` is not active"},
	{Key: "announce_delay", Value: span(func(b *bgp) *model.Duration { return &b.Delay }, model.MinAnnounceDelay, model.Duration(time.Hour)), Default: short(model.DefaultAnnounce),
		Doc: "a VIP that was withdrawn must be good for so long before it is announced again"},
	{Key: "bfd.interval", Value: span(func(b *bgp) *model.Duration { return &b.BFD.Interval }, model.MinBFDInterval, model.MaxBFDInterval), Default: "no BFD",
		Doc: "between packets of BFD, by which routers notice that this host is gone"},
	{Key: "bfd.multiplier", Value: number(func(b *bgp) *uint8 { return &b.BFD.Multiplier }, "packets", 1, math.MaxUint8), Default: fmt.Sprint(model.DefaultBFD),
		Doc: "so many missing ones mean that"},
}

// Replicas are the fields of the replicated table.
var Replicas = []Field[copies]{
	{Key: "chain", Value: number(func(r *copies) *uint8 { return &r.Chain }, "load balancers", 1, model.MaxChain), Default: fmt.Sprint(model.DefaultChain),
		Doc: "load balancers that keep an entry of the replicated table", More: "There must be more of them. All but one of a chain may fail at once. See `docs/features/replicas.md`"},
	{Key: "idle_timeout", Value: span(func(r *copies) *model.Duration { return &r.IdleTimeout }, model.MinReplicaIdleTimeout, model.MaxReplicaIdleTimeout),
		Default: short(model.DefaultReplicaIdleTimeout), Doc: "a connection silent for this long loses its entry"},
}

// Fleet are the fields of a fleet but its lists, keys and the check of nodes.
var Fleet = slices.Concat(Section("replicas", Replicas, func(f *fleet) *copies { return &f.Replicas }), []Field[fleet]{
	{Key: "tunnels_from", Value: list(func(f *fleet) *[]netip.Addr { return &f.TunnelsFrom }, "addresses", "", ",", "%v", model.ParseAddress), Default: "accept all",
		Doc: "load balancers: agents by the file drop tunnels from other addresses", More: "See \"Who may open tunnels\""},
})
