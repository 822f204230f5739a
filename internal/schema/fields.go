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
	place   = model.Placement
	source  = model.SourceLimit
	before  = model.Predecessor
	table   = model.Table
	choices = model.Choices
	quic    = model.QUIC
	mptcp   = model.MPTCP
	copies  = model.Replicas
	load    = model.Load
	health  = model.Health
	origin  = model.ServerSource
	server  = model.Server
	node    = model.Node
	bgp     = model.BGP
	l2      = model.L2
)

// Service are the fields of a service but its servers.
var Service = slices.Concat([]Field[service]{
	{Key: "name", Value: name(func(s *service) *string { return &s.Name }),
		Doc: "name in `ctl`, metrics and logs"},
	{Key: "owner", Value: name(func(s *service) *string { return &s.Owner }), Clear: true,
		Doc: "program that keeps the service; `ctl apply` leaves it alone"},
	{Key: "vip", Value: vip(),
		Doc: "address that clients connect to", More: "Not an address of controllers or nodes"},
	{Key: "vips", Value: vips(), Clear: true, Also: "vip",
		Doc: "instead of `vip`: several, IPv4 and IPv6", More: "With `affinity: quic` or `session: tls`, keep the first"},
	{Key: "destinations", Value: prefix(func(s *service) *model.Prefix { return &s.Destinations }), Clear: true,
		Doc: "`protocol: any`, instead of `vip` and `ports`: addresses behind network functions", More: "See \"Network functions\" in `docs/features/replicas.md`"},
	{Key: "protocol", Value: choice(func(s *service) *model.Protocol { return &s.Protocol }), Default: "tcp",
		Doc: "protocol of clients", More: "`any`: TCP, UDP and ICMP echo, for network functions"},
	{Key: "ports", Value: ports(), Alone: model.AllPorts.String(), Also: "port_ranges",
		Doc: "ports that clients connect to", More: "`all`: but those that other services of the `vip` name"},
	{Key: "allow", Value: list(func(s *service) *[]netip.Prefix { return &s.Allow }, "prefixes", fmt.Sprintf("1 to %d prefixes or addresses", model.MaxAllowed), ",", "%v",
		model.ParseSources), Default: "all", Clear: true,
		Doc: "clients that may connect; of others only packets with a valid cookie pass, so that living connections stay"},
	{Key: "dispatch", Value: choice(func(s *service) *model.Dispatch { return &s.Dispatch }), Default: "rr; maglev with `affinity: hash`",
		Doc: "who gets a new connection", More: "See `docs/features/policies.md`. With `affinity: hash` only `maglev`, `hash` and `wcmp`"},
	{Key: "affinity", Value: choice(func(s *service) *model.Affinity { return &s.Affinity }), Default: "cookie; hash for udp",
		Doc: "how later packets find their server",
		More: "`table`: cookie and table entry (`docs/features/connection-table.md`); " +
			"`replicated`: replicated entry (`docs/features/replicas.md`); " +
			"`hash`, `local-table`: baselines, which lose connections"},
	{Key: "fallback", Value: choice(func(s *service) *model.Fallback { return &s.Fallback }), Default: "second-chance; hash for udp and `return: through`",
		Doc: "how packets without a valid cookie find their server", More: "`second-chance`: servers forward packets of other servers"},
	{Key: "cookie_bits", Value: number(func(s *service) *uint8 { return &s.CookieBits }, "bits", model.MinCookieBits, model.MaxCookieBits),
		Default: fmt.Sprintf("%d; %d with `return: through`, always; %d with `table.node_bits`", model.DirectCookieBits, model.ThroughBits, model.MaxCookieBits),
		Doc:     "width of the cookie", More: "2^(bits-1)-1 ids; with `affinity: table` 2^(bits-1-node_bits-index_bits)-1"},
	{Key: "forward", Value: choice(func(s *service) *model.Forward { return &s.Forward }), Default: "ipip; nat with `return: through`",
		Doc: "how packets reach servers"},
	{Key: "return", Value: choice(func(s *service) *model.Return { return &s.Return }), Default: "direct",
		Doc: "path of answers: past the load balancer, or through it"},
	{Key: "table_slots", Value: number(func(s *service) *uint32 { return &s.TableSlots }, "slots", 1, math.MaxUint32), Default: fmt.Sprint(model.DefaultSlots),
		Values: strings.ReplaceAll(strings.Trim(fmt.Sprint(model.TableSizes()), "[]"), " ", ", "),
		Doc:    "size of the placement table"},
},
	Section("placement", Placement, func(s *service) *place { return &s.Placement }),
	[]Field[service]{
		{Key: "slow_start", Value: scalar(func(s *service) *model.Duration { return &s.SlowStart }, "duration",
			"0s, or "+short(model.MinSlowStart)+" to "+short(model.MaxSlowStart), parseDuration, model.Duration.String), Default: "0s: none",
			Doc: "time in which an added or recovered server's share grows from 10 %"},
		{Key: "session", Value: choice(func(s *service) *model.Session { return &s.Session }), Default: "none",
			Doc: "connections of one client session go to one server", More: "See `docs/features/sessions.md`"},
		{Key: "session_clients", Value: number(func(s *service) *uint8 { return &s.SessionClients }, "addresses", 0, model.MaxSessionClients),
			Default: fmt.Sprint(model.DefaultSessionClients),
			Doc:     "client addresses (IPv6: /64 networks) per session in 9 minutes", More: "0: no limit"},
		{Key: "syn_proxy", Value: choice(func(s *service) *model.SYNProxy { return &s.SYNProxy }), Default: "off",
			Doc: "load balancers answer SYNs", More: "See \"SYN floods\" in `docs/features/sessions.md`"},
		{Key: "syn_limit", Value: number(func(s *service) *uint32 { return &s.SYNLimit }, "number", 1, model.MaxSYNLimit), Default: fmt.Sprintf("%d with `syn_proxy: auto`", model.DefaultSYNLimit),
			Doc: "SYNs per second and server that turn `syn_proxy: auto` on"},
		{Key: "announce", Value: choice(func(s *service) *model.VIPAnnouncement { return &s.Announce }), Default: "auto",
			Doc: "who has the VIP", More: "See `docs/run/moving.md`"},
	},
	Section("source_limit", SourceLimit, func(s *service) *source { return &s.SourceLimit }),
	Section("predecessor", Predecessor, func(s *service) *before { return &s.Predecessor }),
	Section("table", Table, func(s *service) *table { return &s.Table }),
	Section("choices", Choices, func(s *service) *choices { return &s.Choices }),
	Section("quic", QUIC, func(s *service) *quic { return &s.QUIC }),
	Section("mptcp", MPTCP, func(s *service) *mptcp { return &s.MPTCP }),
	Section("load", Load, func(s *service) *load { return &s.Load }),
	Section("health", Health, func(s *service) *health { return &s.Health }),
	Section(SourceSection, Source, func(s *service) *origin { return &s.Source }),
)

// SourceSection is what keys of Source begin with, but in files: there they are in `servers`, in the place of a list.
const SourceSection = "source"

// Source are the fields of who names the servers of a service.
var Source = []Field[origin]{
	{Key: "from", Value: choice(func(o *origin) *model.SourceKind { return &o.From }), Default: "list",
		Doc: "who names the servers; needs controllers"},
	{Key: "name", Value: text(func(o *origin) *string { return &o.Name }), Values: "domain name", Clear: true,
		Doc: "`dns`: the name to resolve", More: "Absolute: no search list"},
	{Key: "record", Value: choice(func(o *origin) *model.SourceRecord { return &o.Record }), Default: "address",
		Doc: "`dns`: A and AAAA, or SRV with weights (and ports with `forward: nat`)", More: "Of SRV, the lowest priority counts"},
	{Key: "family", Value: choice(func(o *origin) *model.SourceFamily { return &o.Family }), Default: "any",
		Doc: "`dns`: addresses to ask for"},
	{Key: "resolver", Value: text(func(o *origin) *string { return &o.Resolver }), Values: "address or address:port", Clear: true,
		Doc: "`dns`: where to ask", More: "Default: the controller's `/etc/resolv.conf`"},
	{Key: "transport", Value: choice(func(o *origin) *model.SourceTransport { return &o.Transport }), Default: "udp",
		Doc: "`dns`: `tcp` is harder to forge"},
	{Key: "service", Value: text(func(o *origin) *string { return &o.Service }), Values: "name", Clear: true,
		Doc: "`consul`: the service"},
	{Key: "agent", Value: text(func(o *origin) *string { return &o.Agent }), Values: "name", Clear: true,
		Doc: "`consul`: `consul/NAME.yaml` of the controllers' `--sources-dir`", More: "Default: `" + model.DefaultAgent + "`"},
	{Key: "datacenter", Value: text(func(o *origin) *string { return &o.Datacenter }), Values: "name", Clear: true,
		Doc: "`consul`: default: the agent's"},
	{Key: "tag", Value: text(func(o *origin) *string { return &o.Tag }), Clear: true,
		Doc: "`consul`: instances with this tag alone"},
	{Key: "path", Value: text(func(o *origin) *string { return &o.Path }), Values: "path", Clear: true,
		Doc: "`file`: a list of servers below `files/` of `--sources-dir`"},
}

// Placement are the fields of what places a connection.
var Placement = []Field[place]{
	{Key: "over", Value: choice(func(p *place) *model.PlacementOver { return &p.Over }), Default: "connection",
		Doc: "what policies by table hash", More: "`source`: the client's address alone (ClientIP persistence)"},
	{Key: "ipv4_prefix", Value: number(func(p *place) *uint8 { return &p.IPv4Prefix }, "bits", 1, 32), Default: fmt.Sprint(model.DefaultIPv4Prefix),
		Doc: "bits of an IPv4 source"},
	{Key: "ipv6_prefix", Value: number(func(p *place) *uint8 { return &p.IPv6Prefix }, "bits", 1, 128), Default: fmt.Sprint(model.DefaultIPv6Prefix),
		Doc: "the same of IPv6"},
}

// SourceLimit are the fields of how many connections a client may begin.
var SourceLimit = []Field[source]{
	{Key: "rate", Value: number(func(l *source) *uint32 { return &l.Rate }, "number", 1, model.MaxSourceRate), Default: "no limit",
		Doc: "new connections per second from one source, per load balancer and VIP; more are dropped", More: "With `session: tls` or an active `syn_proxy`, completed handshakes count; else SYNs and first datagrams"},
	{Key: "burst", Value: number(func(l *source) *uint32 { return &l.Burst }, "number", 1, model.MaxSourceRate*model.MaxSourceBurstTime), Default: "the rate",
		Doc: "new connections that a source may begin at once"},
	{Key: "ipv4_prefix", Value: number(func(l *source) *uint8 { return &l.IPv4Prefix }, "bits", 1, 32), Default: fmt.Sprint(model.DefaultIPv4Prefix),
		Doc: "bits of an IPv4 address that are one source"},
	{Key: "ipv6_prefix", Value: number(func(l *source) *uint8 { return &l.IPv6Prefix }, "bits", 1, model.MaxSourcePrefix), Default: fmt.Sprint(model.DefaultIPv6Prefix),
		Doc: "the same of IPv6"},
}

// Predecessor are the fields of who has connections to a VIP that did not begin here.
var Predecessor = []Field[before]{
	{Key: "addresses", Value: list(func(p *before) *[]netip.Addr { return &p.Addresses }, "addresses", fmt.Sprintf("1 to %d addresses", model.MaxPredecessors), ",", "%v",
		model.ParseAddress), Clear: true,
		Doc: "another load balancer, which gets what did not begin here", More: "See `docs/run/moving.md`"},
	{Key: "forward", Value: choice(func(p *before) *model.Forward { return &p.Forward }), Values: "`l2`, `ipip`, `gue`", Default: "l2",
		Doc: "how it gets them"},
	{Key: "share", Value: scalar(func(p *before) *model.HereShare { return &p.Share }, "number", fmt.Sprintf("0 to %d", model.ShareAll), model.ParseShare, model.HereShare.String), Default: fmt.Sprint(model.ShareAll),
		Doc: "new connections per mille that begin here"},
}

// Table are the fields of a service's connection table.
var Table = []Field[table]{
	{Key: "entries", Value: number(func(t *table) *uint32 { return &t.Entries }, "number", model.MinEntries, model.MaxEntries), Default: fmt.Sprint(model.DefaultEntries),
		Doc: "size of the table, with `affinity: table`", More: "32 bytes each (48 for IPv6). " +
			"`--max-entries` limits the sum of all services"},
	{Key: "index_bits", Value: number(func(t *table) *uint8 { return &t.IndexBits }, "bits", 1, model.MaxIndexBits), Default: fmt.Sprint(model.DefaultIndexBits),
		Doc: "cookie bits for the entry's index in its partition", More: "Fewer leave more ids, and fill the table less evenly. Also with `affinity: cookie` after a table"},
	{Key: "node_bits", Value: number(func(t *table) *uint8 { return &t.NodeBits }, "bits", 0, model.MaxNodeBits), Default: fmt.Sprintf("0; %d with a second tier", model.DefaultNodeBits),
		Doc: "cookie bits for the id of a second-tier node", More: "2^bits-1 nodes"},
	{Key: "idle_timeout", Value: span(func(t *table) *model.Duration { return &t.IdleTimeout }, model.MinIdleTimeout, model.MaxIdleTimeout), Default: short(model.DefaultIdleTimeout),
		Doc: "time without a packet after which a connection loses its entry", More: "Its next packet makes a new one"},
	{Key: "packet_limit", Value: number(func(t *table) *uint32 { return &t.PacketLimit }, "packets", 0, model.MaxPacketLimit), Default: "0: none",
		Doc: "packets per connection in 1.07 s; more are dropped"},
	{Key: "scrubber", Value: text(func(t *table) *string { return &t.Scrubber }), Clear: true,
		Doc: "server of weight 0 that suspects' packets visit first", More: "Same address family as the other servers. Needs `fallback: second-chance`"},
}

// Choices are the fields of dispatch choices.
var Choices = []Field[choices]{
	{Key: "candidates", Value: number(func(c *choices) *uint8 { return &c.Candidates }, "number", model.MinCandidates, model.MaxCandidates), Default: fmt.Sprint(model.DefaultCandidates),
		Doc: "servers that a new connection is offered to, with `dispatch: choices`"},
	{Key: "history", Value: number(func(c *choices) *uint8 { return &c.History }, "number", 1, model.MaxHistory), Default: fmt.Sprint(model.DefaultHistory),
		Doc: "owners of a candidate's slot that are kept, the present one included"},
	{Key: "accept.policy", Value: choice(func(c *choices) *model.AcceptPolicy { return &c.Accept.Policy }), Default: "dynamic",
		Doc: "how a candidate decides; the last one always accepts"},
	{Key: "accept.load", Value: choice(func(c *choices) *model.AcceptLoad { return &c.Accept.Load }), Default: "connections",
		Doc: "load for that decision"},
	{Key: "accept.threshold", Value: number(func(c *choices) *uint32 { return &c.Accept.Threshold }, "load", 1, math.MaxUint32), Default: "1 with `dynamic`, where it begins",
		Doc: "load from which a candidate refuses"},
	{Key: "accept.window", Value: number(func(c *choices) *uint16 { return &c.Accept.Window }, "offers", 1, math.MaxUint16), Default: fmt.Sprintf("%d with `dynamic`", model.DefaultWindow),
		Doc: "offers after which `dynamic` may move the threshold"},
	{Key: "accept.margin", Value: number(func(c *choices) *uint8 { return &c.Accept.Margin }, "percent", 1, 49), Default: fmt.Sprintf("%d with `dynamic`", model.DefaultMargin),
		Doc: "deviation from half of the offers that `dynamic` tolerates"},
}

// QUIC are the fields of connection ids.
var QUIC = []Field[quic]{
	{Key: "algorithm", Value: choice(func(q *quic) *model.QUICAlgorithm { return &q.Algorithm }), Default: "single-pass",
		Doc: "how connection ids hide the server, with `affinity: quic`", More: "See `docs/features/quic.md`. `plain` does not hide it"},
	{Key: "server_id_length", Value: number(func(q *quic) *uint8 { return &q.ServerIDLength }, "bytes", 1, model.MaxQUICServerIDLength), Default: fmt.Sprint(model.DefaultServerIDLength),
		Doc: "length of the server's id in connection ids", More: "1 byte: ids up to 255, which clients' own ids often hit by chance"},
	{Key: "nonce_length", Value: number(func(q *quic) *uint8 { return &q.NonceLength }, "bytes", model.MinQUICNonceLength, model.MaxQUICNonceLength),
		Default: fmt.Sprintf("%d; what fills %d with `single-pass`", model.DefaultNonceLength, model.SinglePassLength),
		Doc:     "number of random bytes after it", More: fmt.Sprintf("Both together at most %d", model.MaxQUICLength)},
}

// MPTCP are the fields of where further subflows go.
var MPTCP = []Field[mptcp]{
	{Key: "first_port", Value: number(func(m *mptcp) *uint16 { return &m.FirstPort }, "port", 1, math.MaxUint16),
		Doc: "first of the VIP's ports that further subflows join at", More: "See `docs/features/mptcp.md`"},
	{Key: "ports", Value: number(func(m *mptcp) *uint16 { return &m.Ports }, "ports", 2, math.MaxUint16), Default: fmt.Sprint(model.DefaultJoinPorts),
		Doc: "number of these ports, twice the largest server id"},
}

// Load are the fields of how the load of servers is measured.
var Load = []Field[load]{
	{Key: "source", Value: choice(func(l *load) *model.LoadSource { return &l.Source }), Default: "connections; endpoint with `load.endpoint`",
		Doc: "load for `awrr`, `awfd`, `lcf`, `p2c` and `least`"},
	{Key: "interval", Value: span(func(l *load) *model.Duration { return &l.Interval }, model.MinLoadInterval, model.MaxLoadInterval), Default: "250ms",
		Doc: "between reports of load, and between updates of weights"},
	{Key: "classes", Value: number(func(l *load) *uint8 { return &l.Classes }, "number", 0, model.MaxClasses), Default: fmt.Sprint(model.DefaultClasses),
		Doc: "priority classes of `awfd`", More: "0 is ECMP, 1 is `lcf`"},
	{Key: "queue_limit", Value: number(func(l *load) *uint32 { return &l.QueueLimit }, "requests", 1, math.MaxUint32), Default: "128",
		Doc: "requests that a server of weight 1 can hold"},
	{Key: "endpoint", Value: text(func(l *load) *string { return &l.Endpoint }), Values: "URL",
		Doc: "where applications report load, with `source: endpoint`", More: "`http://:8080/load`: each server; `http://host:8080/load`: one host for all"},
}

// Health are the fields of how servers are checked.
var Health = []Field[health]{
	{Key: "check", Value: choice(func(h *health) *model.Check { return &h.Check }), Default: "none",
		Doc: "kind of check", More: "See \"Health checks\""},
	{Key: "interval", Value: span(func(h *health) *model.Duration { return &h.Interval }, model.MinCheckTime, model.MaxCheckTime), Default: "2s",
		Doc: "between checks of a server by one load balancer", More: "Jitter: a tenth"},
	{Key: "timeout", Value: span(func(h *health) *model.Duration { return &h.Timeout }, model.MinCheckTime, model.MaxCheckTime), Default: "1s, or a shorter interval",
		Doc: "time limit of one check", More: "At most the interval"},
	{Key: "rise", Value: number(func(h *health) *uint8 { return &h.Rise }, "number", 1, math.MaxUint8), Default: "2",
		Doc: "successes in a row until a server is healthy again"},
	{Key: "fall", Value: number(func(h *health) *uint8 { return &h.Fall }, "number", 1, math.MaxUint8), Default: "3",
		Doc: "failures in a row until a server is unhealthy"},
	{Key: "port", Value: number(func(h *health) *uint16 { return &h.Port }, "port", 1, math.MaxUint16), Default: "the service's first; the server's with `nat`; none for nodes",
		Doc: "port to check"},
	{Key: "path", Value: text(func(h *health) *string { return &h.Path }), Default: "/",
		Doc: "`http`, `https`: path to ask for"},
	{Key: "host", Value: text(func(h *health) *string { return &h.Host }),
		Doc: "`http`, `https`: Host header; `https`, `tls`, `grpcs`: name to verify in the certificate; `grpc`, `grpcs`: authority"},
	{Key: "service", Value: text(func(h *health) *string { return &h.Service }),
		Doc: "`grpc`, `grpcs`: service name"},
	{Key: "command", Value: list(func(h *health) *[]string { return &h.Command }, "words", "", " ", "%q", func(text string) (string, error) { return text, nil }),
		Doc: "`exec`: program and arguments"},
	{Key: "send", Value: text(func(h *health) *string { return &h.Send }),
		Doc: "`udp`: the datagram to send", More: "Text, or `hex:` and hexadecimal digits; at most 1,200 bytes"},
	{Key: "expect", Value: text(func(h *health) *string { return &h.Expect }),
		Doc: "`udp`: beginning of the answer", More: "As `send`. Default: any answer"},
	{Key: "contains", Value: text(func(h *health) *string { return &h.Contains }),
		Doc: "`udp`: part of the answer", More: "As `send`"},
	{Key: "query", Value: text(func(h *health) *string { return &h.Query }),
		Doc: "`dns`: name and type to ask for", More: "As in `example.com A`"},
	{Key: "rcode", Value: text(func(h *health) *string { return &h.RCode }),
		Doc: "`dns`: expected response code", More: "Default: NOERROR, and a record"},
	{Key: "all_down", Value: choice(func(h *health) *model.AllDown { return &h.AllDown }), Default: "keep",
		Doc: "who gets new connections when no server is healthy", More: "`keep`: the last healthy set; `withdraw`: the same, and BGP withdraws the VIP; `all`, `none`"},
	{Key: "deadline", Value: scalar(func(h *health) *model.Duration { return &h.Deadline }, "duration", "", parseDuration, model.Duration.String), Default: "0s: never",
		Doc: "time after which connections of an unhealthy server are cut"},
}

// Server are the fields of a server.
var Server = []Field[server]{
	{Key: "name", Value: name(func(s *server) *string { return &s.Name }), Default: "the address",
		Doc: "name in `ctl`, metrics and logs"},
	{Key: "address", Value: address(func(s *server) *netip.Addr { return &s.Address }),
		Doc: "the server's own address, not a VIP"},
	{Key: "port", Value: number(func(s *server) *uint16 { return &s.Port }, "port", 1, math.MaxUint16), Default: "the port that the client used",
		Doc: "port of the server, with `forward: nat`"},
	{Key: "id", Value: number(func(s *server) *uint16 { return &s.ID }, "number", 1, 1<<(model.MaxCookieBits-1)-1), Values: "1 to what `cookie_bits` leave room for",
		Default: "by `ctl` the one it had, or the next free one",
		Doc:     "id in cookies and the local table", More: "Required for `affinity: cookie`, `table` and `local-table`. " +
			"The same on every node"},
	{Key: "weight", Value: number(func(s *server) *uint16 { return &s.Weight }, "number", 0, model.MaxWeight), Default: "1",
		Doc: "share of new connections", More: "0: none; existing ones stay. `rr` gives all others the same: use `wrr`"},
	{Key: "state", Value: choice(func(s *server) *model.ServerState { return &s.State }), Default: "active",
		Doc: "`draining`: no new connections, existing ones stay; `off`: no packets, the id stays reserved"},
	{Key: "deadline", Value: moment(func(s *server) *time.Time { return &s.Deadline }), Values: "time like `2026-01-31T23:00:00Z`", Default: "never",
		Doc: "time at which a draining server is switched off"},
}

// Node are the fields of a load balancer with a tier, or one that announces VIPs.
var Node = slices.Concat([]Field[node]{
	{Key: "name", Value: name(func(n *node) *string { return &n.Name }),
		Doc: "name in its certificate, or `--name`"},
	{Key: "tier", Value: choice(func(n *node) *model.Tier { return &n.Tier }),
		Doc: "with `affinity: table`: `first` sends connections to nodes of tier `second`, which keep the tables"},
	{Key: "address", Value: address(func(n *node) *netip.Addr { return &n.Address }),
		Doc: "second tier: the node's own address"},
	{Key: "id", Value: number(func(n *node) *uint16 { return &n.ID }, "number", 1, 1<<model.MaxNodeBits-1), Values: "1 to 2^node_bits-1", Default: "by `ctl` the next free one",
		Doc: "second tier: id in cookies, the same on every node"},
	{Key: "state", Value: choice(func(n *node) *model.ServerState { return &n.State }), Default: "active",
		Doc: "`draining`: no new connections, existing ones stay; `off`: no packets from the first tier", More: "With `bgp` or `l2`, both announce nothing"},
}, Section("bgp", BGP, func(n *node) *bgp { return &n.BGP }), Section("l2", L2, func(n *node) *l2 { return &n.L2 }))

// BGP are the fields of how a load balancer announces VIPs.
var BGP = []Field[bgp]{
	{Key: "as", Value: number(func(b *bgp) *uint32 { return &b.AS }, "number", 1, math.MaxUint32),
		Doc: "this load balancer's AS", More: "See `docs/run/bgp.md`"},
	{Key: "router_id", Value: address(func(b *bgp) *netip.Addr { return &b.RouterID.Addr }), Default: "its address towards the first IPv4 neighbour",
		Doc: "BGP identifier, an IPv4 address; unique"},
	{Key: "neighbors", Value: list(func(b *bgp) *[]model.Neighbor { return &b.Neighbors }, "neighbors", "addresses of routers, with their AS: `10.0.0.1 as 64512`", ",", "%v", model.ParseNeighbor),
		Doc: "the routers"},
	{Key: "neighbor_as", Value: number(func(b *bgp) *uint32 { return &b.NeighborAS }, "number", 1, math.MaxUint32),
		Doc: "the AS of neighbours without one"},
	{Key: "listen_port", Value: number(func(b *bgp) *uint16 { return &b.ListenPort }, "port", 1, math.MaxUint16), Default: "none: it only connects",
		Doc: "port for connections from routers", More: "Standard: 179"},
	{Key: "password_file", Value: text(func(b *bgp) *string { return &b.PasswordFile }), Values: "path", Clear: true,
		Doc: "file with the password of all sessions (TCP MD5, RFC 2385)", More: "Mode 600. Read again when it changes"},
	{Key: "hold_time", Value: span(func(b *bgp) *model.Duration { return &b.HoldTime }, model.MinHoldTime, model.MaxHoldTime), Default: short(model.DefaultHoldTime),
		Doc: "time without a message after which a session is down"},
	{Key: "keepalive", Value: span(func(b *bgp) *model.Duration { return &b.Keepalive }, model.Duration(time.Second), model.MaxHoldTime), Default: "a third of `hold_time`",
		Doc: "interval of keepalive messages"},
	{Key: "connect_retry", Value: span(func(b *bgp) *model.Duration { return &b.ConnectRetry }, model.MinConnectRetry, model.Duration(time.Hour)), Default: short(model.DefaultConnectRetry),
		Doc: "interval between connection attempts"},
	{Key: "restart_time", Value: span(func(b *bgp) *model.Duration { return &b.RestartTime }, model.Duration(time.Second), model.MaxRestartTime), Default: short(model.DefaultRestartTime),
		Doc: "time for which routers keep the routes while the daemon restarts (RFC 4724)"},
	{Key: "multihop", Value: number(func(b *bgp) *uint8 { return &b.Multihop }, "TTL", 1, math.MaxUint8), Default: "1: neighbours are on a link of this host",
		Doc: "TTL of sessions with another AS"},
	{Key: "ttl_security", Value: number(func(b *bgp) *uint8 { return &b.TTLSecurity }, "hops", 1, 254), Default: "none",
		Doc: "largest distance of neighbours in hops (GTSM, RFC 5082)", More: "On a link: 1. Set it on the router too"},
	{Key: "communities", Value: list(func(b *bgp) *[]model.Community { return &b.Communities }, "communities", "`\"64512:100\"`, `no-export`, ...", ",", "%v", model.ParseCommunity),
		Doc: "communities of all routes"},
	{Key: "med", Value: number(func(b *bgp) *uint32 { return &b.MED }, "number", 1, math.MaxUint32), Default: "none",
		Doc: "multi-exit discriminator of all routes"},
	{Key: "announce", Value: choice(func(b *bgp) *model.Announce { return &b.Announce }), Default: "able",
		Doc: "VIPs to announce", More: "`able`: with a server that this load balancer can reach; `always`: all. None while `state` is not active"},
	{Key: "announce_delay", Value: span(func(b *bgp) *model.Duration { return &b.Delay }, model.MinAnnounceDelay, model.Duration(time.Hour)), Default: short(model.DefaultAnnounce),
		Doc: "time that a withdrawn VIP must be usable before it is announced again"},
	{Key: "bfd.interval", Value: span(func(b *bgp) *model.Duration { return &b.BFD.Interval }, model.MinBFDInterval, model.MaxBFDInterval), Default: "no BFD",
		Doc: "interval of BFD packets, by which routers detect a dead host"},
	{Key: "bfd.multiplier", Value: number(func(b *bgp) *uint8 { return &b.BFD.Multiplier }, "packets", 1, math.MaxUint8), Default: fmt.Sprint(model.DefaultBFD),
		Doc: "number of missing packets that mean a dead host"},
}

// L2 are the fields of how a load balancer announces VIPs on its segment.
var L2 = []Field[l2]{
	{Key: "interface", Value: text(func(l *l2) *string { return &l.Interface }), Values: "network device",
		Doc: "device that answers ARP and Neighbor Discovery for VIPs", More: "See `docs/run/bgp.md`"},
	{Key: "announce_delay", Value: span(func(l *l2) *model.Duration { return &l.Delay }, model.MinAnnounceDelay, model.Duration(time.Hour)), Default: short(model.DefaultAnnounce),
		Doc: "time that a VIP must be usable again before this load balancer takes it"},
}

// Replicas are the fields of the replicated table.
var Replicas = []Field[copies]{
	{Key: "chain", Value: number(func(r *copies) *uint8 { return &r.Chain }, "load balancers", 1, model.MaxChain), Default: fmt.Sprint(model.DefaultChain),
		Doc: "load balancers that keep an entry of the replicated table; all but one may fail at once", More: "The fleet needs more than this number"},
	{Key: "idle_timeout", Value: span(func(r *copies) *model.Duration { return &r.IdleTimeout }, model.MinReplicaIdleTimeout, model.MaxReplicaIdleTimeout),
		Default: short(model.DefaultReplicaIdleTimeout), Doc: "time without a packet after which a connection loses its entry"},
}

// Fleet are the fields of a fleet but its lists, keys and the check of nodes.
var Fleet = slices.Concat(Section("replicas", Replicas, func(f *fleet) *copies { return &f.Replicas }), []Field[fleet]{
	{Key: "tunnels_from", Value: list(func(f *fleet) *[]netip.Addr { return &f.TunnelsFrom }, "addresses", "", ",", "%v", model.ParseAddress), Default: "accept all",
		Doc: "load balancers; agents by a file drop tunnels from other addresses", More: "See \"Who may open tunnels\""},
	{Key: "unserved", Value: choice(func(f *fleet) *model.Unserved { return &f.Unserved }), Default: "pass",
		Doc:  "packets to a VIP that no service takes: `pass` to the host, or `reject` by RST or ICMP",
		More: "`reject` also resets connections to a removed port, or to one that a load balancer does not know yet"},
})
