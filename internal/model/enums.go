package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The BPF programs have these numbers of Dispatch, Affinity and Forward, under these names: make writes them to bpf/wire/choices.h. 255 means
// "not chosen yet": ApplyDefaults replaces it.

// Protocol is the transport protocol of a service, by its IANA number.
type Protocol uint8

// Dispatch is the policy that picks the server of a new connection.
type Dispatch uint8

// Affinity is how later packets of a connection find its server.
type Affinity uint8

// Fallback is what happens to packets that carry no valid cookie.
type Fallback uint8

// Forward is how a packet travels from the load balancer to the server.
type Forward uint8

// Return is the way that answers take to the client.
type Return uint8

// ServerState tells whether a server takes part.
type ServerState uint8

// LoadSource is what a server's load is measured by. Servers of whom it says nothing are estimated by the load balancers.
type LoadSource uint8

// Check is how a server's health is found out.
type Check uint8

// Tier is a load balancer's part when there are two tiers (Cheetah III-B).
type Tier uint8

// Announce is which VIPs a load balancer announces by BGP.
type Announce uint8

// AllDown is who gets new connections when no server of a service is healthy.
type AllDown uint8

// QUICAlgorithm is how QUIC connection ids hide the server's id (draft-ietf-quic-load-balancers-21, 5.3 and 5.4).
type QUICAlgorithm uint8

// PlacementOver is what of a connection says its place in a table.
type PlacementOver uint8

// Session is what sessions of clients, of several connections each, go by.
type Session uint8

// Unserved is what becomes of packets to a VIP that are for none of its services.
type Unserved uint8

// SYNProxy is when load balancers answer the SYNs of a service themselves.
type SYNProxy uint8

// SourceKind is who knows the servers of a service.
type SourceKind uint8

// SourceRecord is which records of the DNS name servers.
type SourceRecord uint8

// SourceFamily is which addresses of names are servers.
type SourceFamily uint8

// SourceTransport is what DNS queries go by.
type SourceTransport uint8

// AcceptPolicy is how a server decides whether it accepts a connection that another candidate could have.
type AcceptPolicy uint8

// AcceptLoad is the load that it decides by.
type AcceptLoad uint8

// Bits of the flags of a TCP segment (RFC 9293 3.1).
const (
	TCPFin = 1 << iota
	TCPSyn
	TCPRst
	TCPPsh
	TCPAck
)

// TCPFlags are their names, the lowest bit first.
var TCPFlags = []string{"FIN", "SYN", "RST", "PSH", "ACK"}

// PredecessorID is that of a service's first predecessor, to which packets are sent as to a server of that id; the next ones follow. Servers' are below.
const PredecessorID = 0xfff0

const (
	ProtocolTCP Protocol = 6
	ProtocolUDP Protocol = 17
	ProtocolAny Protocol = 254 // TCP, UDP and ICMP echo, of network functions. IANA keeps it for experiments

	DispatchHash    Dispatch = 0 // slot i belongs to server i mod N: the ECMP-like baseline
	DispatchMaglev  Dispatch = 1
	DispatchRR      Dispatch = 2
	DispatchWRR     Dispatch = 3
	DispatchP2C     Dispatch = 4
	DispatchLeast   Dispatch = 5  // fewest open connections
	DispatchAWRR    Dispatch = 6  // turns that follow the servers' load (Cheetah IV-B)
	DispatchAWFD    Dispatch = 7  // in proportion to available capacity, in classes (Spotlight IV-B)
	DispatchWCMP    Dispatch = 8  // slots in proportion to the weights: the baseline of Spotlight
	DispatchLCF     Dispatch = 9  // least congested first: the baseline of Spotlight
	DispatchChoices Dispatch = 10 // a slot's candidates, who accept or pass on (SHELL III)
	DispatchUnset   Dispatch = 255

	AffinityHash    Affinity = 0
	AffinityCookie  Affinity = 1
	AffinityTable   Affinity = 2 // the cookie also carries the index of an entry of a connection table (Cheetah III-B)
	AffinityLocal   Affinity = 3 // a hash map of this node alone: the baseline
	AffinityHistory Affinity = 4 // the timestamp names the candidate that accepted; its slot, and the slot's history, name the server (SHELL III)
	AffinityQUIC    Affinity = 5 // QUIC connection ids that servers issue name them (draft-ietf-quic-load-balancers-21)
	AffinityUnset   Affinity = 255

	// AffinityReplicated: all load balancers find it in a table that chains of them replicate (Anolis).
	AffinityReplicated Affinity = 6

	FallbackHash         Fallback = 0
	FallbackSecondChance Fallback = 1
	FallbackReplicated   Fallback = 2 // in the replicated table
	FallbackUnset        Fallback = 255

	ForwardL2    Forward = 0
	ForwardIPIP  Forward = 1
	ForwardGUE   Forward = 2
	ForwardNAT   Forward = 3
	ForwardSRv6  Forward = 4 // RFC 8754, without a header where there is only one segment
	ForwardUnset Forward = 255

	ReturnDirect  Return = 0
	ReturnThrough Return = 1
	ReturnUnset   Return = 255

	StateActive   ServerState = 0
	StateDraining ServerState = 1
	StateOff      ServerState = 2 // gets no packets at all; its id stays its own

	AnnounceAble   Announce = 0 // VIPs that can be carried
	AnnounceAlways Announce = 1 // all, as long as the node is not drained

	TierFirst  Tier = 1 // stateless: sends connections with affinity table to nodes of the second tier
	TierSecond Tier = 2 // keeps their tables

	LoadEstimate    LoadSource = 0 // open connections as the load balancers count them
	LoadConnections LoadSource = 1 // open connections and accept queue, told by the agent
	LoadCPU         LoadSource = 2 // CPU in use, told by the agent
	LoadEndpoint    LoadSource = 3 // what the application says at an HTTP endpoint
	LoadPackets     LoadSource = 4 // packets a second that load balancers send
	LoadBytes       LoadSource = 5 // bytes a second that load balancers send
	LoadUnset       LoadSource = 255

	CheckNone  Check = 0
	CheckTCP   Check = 1
	CheckHTTP  Check = 2
	CheckHTTPS Check = 3
	CheckTLS   Check = 4
	CheckGRPC  Check = 5 // grpc.health.v1
	CheckExec  Check = 6
	CheckQUIC  Check = 7
	CheckGRPCS Check = 8 // grpc.health.v1 inside TLS
	CheckUDP   Check = 9
	CheckDNS   Check = 10

	AllDownKeep     AllDown = 0 // the last set that stood for a while
	AllDownAll      AllDown = 1 // all servers, as if none had been checked
	AllDownNone     AllDown = 2 // nobody: new connections are dropped
	AllDownWithdraw AllDown = 3 // as keep, and BGP withdraws the VIP

	QUICSinglePass QUICAlgorithm = 0 // one block of AES-128: id and nonce are 16 bytes
	QUICFourPass   QUICAlgorithm = 1 // four Feistel passes, of other lengths
	QUICPlain      QUICAlgorithm = 2 // anybody can read the server's id

	PlaceConnection PlacementOver = 0 // addresses and ports
	PlaceSource     PlacementOver = 1 // the client's address

	SessionNone Session = 0
	SessionTLS  Session = 1 // all connections of one TLS session reach one server (Yuz)

	UnservedPass   Unserved = 0 // to the host's stack
	UnservedReject Unserved = 1 // answered by a RST, or by ICMP

	SYNProxyOff    SYNProxy = 0
	SYNProxyAuto   SYNProxy = 1 // while there are more than Service.SYNLimit
	SYNProxyAlways SYNProxy = 2

	SourceList   SourceKind = 0 // they are listed
	SourceDNS    SourceKind = 1
	SourceConsul SourceKind = 2
	SourceFile   SourceKind = 3

	RecordAddress SourceRecord = 0 // A and AAAA
	RecordSRV     SourceRecord = 1 // and the addresses of their targets

	FamilyAny  SourceFamily = 0
	FamilyIPv4 SourceFamily = 1
	FamilyIPv6 SourceFamily = 2

	TransportUDP SourceTransport = 0 // TCP where an answer does not fit
	TransportTCP SourceTransport = 1

	AcceptDynamic AcceptPolicy = 0 // below one that is set so that half of the connections offered are accepted (6LB: SRdyn)
	AcceptStatic  AcceptPolicy = 1 // below a threshold of load

	AcceptByConnections AcceptLoad = 0 // live connections of the service
	AcceptByBacklog     AcceptLoad = 1 // connections that wait for the application to accept them
	AcceptByCPU         AcceptLoad = 2 // percent of CPU time in use, plus that of the time in which a task waits for a CPU (PSI)
	AcceptByEndpoint    AcceptLoad = 3 // what the application says at Load.Endpoint
)

var (
	protocolNames = map[Protocol]string{ProtocolTCP: "tcp", ProtocolUDP: "udp", ProtocolAny: "any"}
	dispatchNames = map[Dispatch]string{DispatchHash: "hash", DispatchMaglev: "maglev", DispatchRR: "rr", DispatchWRR: "wrr", DispatchP2C: "p2c",
		DispatchLeast: "least", DispatchAWRR: "awrr", DispatchAWFD: "awfd", DispatchWCMP: "wcmp", DispatchLCF: "lcf", DispatchChoices: "choices"}
	affinityNames = map[Affinity]string{AffinityHash: "hash", AffinityCookie: "cookie", AffinityTable: "table", AffinityLocal: "local-table", AffinityHistory: "history",
		AffinityQUIC: "quic", AffinityReplicated: "replicated"}
	fallbackNames = map[Fallback]string{FallbackHash: "hash", FallbackSecondChance: "second-chance", FallbackReplicated: "replicated"}
	forwardNames  = map[Forward]string{ForwardL2: "l2", ForwardIPIP: "ipip", ForwardGUE: "gue", ForwardNAT: "nat", ForwardSRv6: "srv6"}
	returnNames   = map[Return]string{ReturnDirect: "direct", ReturnThrough: "through"}
	stateNames    = map[ServerState]string{StateActive: "active", StateDraining: "draining", StateOff: "off"}
	loadNames     = map[LoadSource]string{LoadEstimate: "estimate", LoadConnections: "connections", LoadCPU: "cpu", LoadEndpoint: "endpoint", LoadPackets: "packets", LoadBytes: "bytes"}
	checkNames    = map[Check]string{CheckNone: "none", CheckTCP: "tcp", CheckHTTP: "http", CheckHTTPS: "https", CheckTLS: "tls", CheckGRPC: "grpc", CheckExec: "exec", CheckQUIC: "quic", CheckGRPCS: "grpcs",
		CheckUDP: "udp", CheckDNS: "dns"}
	tierNames         = map[Tier]string{TierFirst: "first", TierSecond: "second"}
	announceNames     = map[Announce]string{AnnounceAble: "able", AnnounceAlways: "always"}
	quicNames         = map[QUICAlgorithm]string{QUICSinglePass: "single-pass", QUICFourPass: "four-pass", QUICPlain: "plain"}
	placementNames    = map[PlacementOver]string{PlaceConnection: "connection", PlaceSource: "source"}
	sessionNames      = map[Session]string{SessionNone: "none", SessionTLS: "tls"}
	unservedNames     = map[Unserved]string{UnservedPass: "pass", UnservedReject: "reject"}
	synProxyNames     = map[SYNProxy]string{SYNProxyOff: "off", SYNProxyAuto: "auto", SYNProxyAlways: "always"}
	sourceNames       = map[SourceKind]string{SourceList: "list", SourceDNS: "dns", SourceConsul: "consul", SourceFile: "file"}
	recordNames       = map[SourceRecord]string{RecordAddress: "address", RecordSRV: "srv"}
	transportNames    = map[SourceTransport]string{TransportUDP: "udp", TransportTCP: "tcp"}
	acceptNames       = map[AcceptPolicy]string{AcceptDynamic: "dynamic", AcceptStatic: "static"}
	sourceFamilyNames = map[SourceFamily]string{FamilyAny: "any", FamilyIPv4: "ipv4", FamilyIPv6: "ipv6"}
	acceptByNames     = map[AcceptLoad]string{AcceptByConnections: "connections", AcceptByBacklog: "backlog", AcceptByCPU: "cpu", AcceptByEndpoint: "endpoint"}
	allDownNames      = map[AllDown]string{AllDownKeep: "keep", AllDownAll: "all", AllDownNone: "none", AllDownWithdraw: "withdraw"}
)

// TunnelProtocol is how firewalls name the tunnels of the service to servers; empty: it has none.
func (s *Service) TunnelProtocol() string {
	switch {
	case s.Forward == ForwardGUE:
		return "UDP port 6080"
	case s.Forward == ForwardSRv6:
		return "IPv6 with routing headers (protocol 43)"
	case s.Forward == ForwardIPIP && s.HasIPv6() && s.HasIPv4():
		return "IP protocols 4 and 41"
	case s.Forward == ForwardIPIP && s.HasIPv6():
		return "IP protocol 41"
	case s.Forward == ForwardIPIP:
		return "IP protocol 4"
	}
	return ""
}

// Tunnels reports whether packets travel inside others, which agents unpack.
func (v Forward) Tunnels() bool { return v == ForwardIPIP || v == ForwardGUE || v == ForwardSRv6 }

func (v Protocol) String() string        { return nameOf(protocolNames, v) }
func (v Dispatch) String() string        { return nameOf(dispatchNames, v) }
func (v Affinity) String() string        { return nameOf(affinityNames, v) }
func (v Fallback) String() string        { return nameOf(fallbackNames, v) }
func (v Forward) String() string         { return nameOf(forwardNames, v) }
func (v Return) String() string          { return nameOf(returnNames, v) }
func (v ServerState) String() string     { return nameOf(stateNames, v) }
func (v Tier) String() string            { return nameOf(tierNames, v) }
func (v Announce) String() string        { return nameOf(announceNames, v) }
func (v AllDown) String() string         { return nameOf(allDownNames, v) }
func (v Check) String() string           { return nameOf(checkNames, v) }
func (v LoadSource) String() string      { return nameOf(loadNames, v) }
func (v QUICAlgorithm) String() string   { return nameOf(quicNames, v) }
func (v PlacementOver) String() string   { return nameOf(placementNames, v) }
func (v Session) String() string         { return nameOf(sessionNames, v) }
func (v Unserved) String() string        { return nameOf(unservedNames, v) }
func (v SYNProxy) String() string        { return nameOf(synProxyNames, v) }
func (v SourceKind) String() string      { return nameOf(sourceNames, v) }
func (v SourceRecord) String() string    { return nameOf(recordNames, v) }
func (v SourceFamily) String() string    { return nameOf(sourceFamilyNames, v) }
func (v SourceTransport) String() string { return nameOf(transportNames, v) }
func (v AcceptPolicy) String() string    { return nameOf(acceptNames, v) }
func (v AcceptLoad) String() string      { return nameOf(acceptByNames, v) }

func (v Protocol) MarshalText() ([]byte, error)        { return marshal(protocolNames, v) }
func (v Dispatch) MarshalText() ([]byte, error)        { return marshal(dispatchNames, v) }
func (v Affinity) MarshalText() ([]byte, error)        { return marshal(affinityNames, v) }
func (v Fallback) MarshalText() ([]byte, error)        { return marshal(fallbackNames, v) }
func (v Forward) MarshalText() ([]byte, error)         { return marshal(forwardNames, v) }
func (v Return) MarshalText() ([]byte, error)          { return marshal(returnNames, v) }
func (v ServerState) MarshalText() ([]byte, error)     { return marshal(stateNames, v) }
func (v Tier) MarshalText() ([]byte, error)            { return marshal(tierNames, v) }
func (v Announce) MarshalText() ([]byte, error)        { return marshal(announceNames, v) }
func (v AllDown) MarshalText() ([]byte, error)         { return marshal(allDownNames, v) }
func (v Check) MarshalText() ([]byte, error)           { return marshal(checkNames, v) }
func (v LoadSource) MarshalText() ([]byte, error)      { return marshal(loadNames, v) }
func (v QUICAlgorithm) MarshalText() ([]byte, error)   { return marshal(quicNames, v) }
func (v PlacementOver) MarshalText() ([]byte, error)   { return marshal(placementNames, v) }
func (v Session) MarshalText() ([]byte, error)         { return marshal(sessionNames, v) }
func (v Unserved) MarshalText() ([]byte, error)        { return marshal(unservedNames, v) }
func (v SYNProxy) MarshalText() ([]byte, error)        { return marshal(synProxyNames, v) }
func (v SourceKind) MarshalText() ([]byte, error)      { return marshal(sourceNames, v) }
func (v SourceRecord) MarshalText() ([]byte, error)    { return marshal(recordNames, v) }
func (v SourceFamily) MarshalText() ([]byte, error)    { return marshal(sourceFamilyNames, v) }
func (v SourceTransport) MarshalText() ([]byte, error) { return marshal(transportNames, v) }
func (v AcceptPolicy) MarshalText() ([]byte, error)    { return marshal(acceptNames, v) }
func (v AcceptLoad) MarshalText() ([]byte, error)      { return marshal(acceptByNames, v) }

func (v *Protocol) UnmarshalText(text []byte) error        { return unmarshal(protocolNames, v, text) }
func (v *Dispatch) UnmarshalText(text []byte) error        { return unmarshal(dispatchNames, v, text) }
func (v *Affinity) UnmarshalText(text []byte) error        { return unmarshal(affinityNames, v, text) }
func (v *Fallback) UnmarshalText(text []byte) error        { return unmarshal(fallbackNames, v, text) }
func (v *Forward) UnmarshalText(text []byte) error         { return unmarshal(forwardNames, v, text) }
func (v *Return) UnmarshalText(text []byte) error          { return unmarshal(returnNames, v, text) }
func (v *ServerState) UnmarshalText(text []byte) error     { return unmarshal(stateNames, v, text) }
func (v *Tier) UnmarshalText(text []byte) error            { return unmarshal(tierNames, v, text) }
func (v *Announce) UnmarshalText(text []byte) error        { return unmarshal(announceNames, v, text) }
func (v *AllDown) UnmarshalText(text []byte) error         { return unmarshal(allDownNames, v, text) }
func (v *Check) UnmarshalText(text []byte) error           { return unmarshal(checkNames, v, text) }
func (v *LoadSource) UnmarshalText(text []byte) error      { return unmarshal(loadNames, v, text) }
func (v *QUICAlgorithm) UnmarshalText(text []byte) error   { return unmarshal(quicNames, v, text) }
func (v *PlacementOver) UnmarshalText(text []byte) error   { return unmarshal(placementNames, v, text) }
func (v *Session) UnmarshalText(text []byte) error         { return unmarshal(sessionNames, v, text) }
func (v *Unserved) UnmarshalText(text []byte) error        { return unmarshal(unservedNames, v, text) }
func (v *SYNProxy) UnmarshalText(text []byte) error        { return unmarshal(synProxyNames, v, text) }
func (v *SourceKind) UnmarshalText(text []byte) error      { return unmarshal(sourceNames, v, text) }
func (v *SourceRecord) UnmarshalText(text []byte) error    { return unmarshal(recordNames, v, text) }
func (v *SourceFamily) UnmarshalText(text []byte) error    { return unmarshal(sourceFamilyNames, v, text) }
func (v *SourceTransport) UnmarshalText(text []byte) error { return unmarshal(transportNames, v, text) }
func (v *AcceptPolicy) UnmarshalText(text []byte) error    { return unmarshal(acceptNames, v, text) }
func (v *AcceptLoad) UnmarshalText(text []byte) error      { return unmarshal(acceptByNames, v, text) }

// Dispatches returns all policies, in the order of their numbers.
func Dispatches() []Dispatch { return slices.Sorted(maps.Keys(dispatchNames)) }

// FollowsLoad reports whether the policy's weights come from measured load.
func (v Dispatch) FollowsLoad() bool {
	return v == DispatchAWRR || v == DispatchAWFD || v == DispatchLCF
}

// ComparesLoads reports whether the policy compares servers' loads at each new connection: compares_loads in bpf/lb/state/loads.h.
func (v Dispatch) ComparesLoads() bool { return v == DispatchP2C || v == DispatchLeast }

// ByClasses reports whether weights are a few classes, of which the policy draws servers.
func (v Dispatch) ByClasses() bool { return v == DispatchAWFD || v == DispatchLCF }

// ByAgents reports whether agents measure it, or what replaces it where applications do not answer.
func (v LoadSource) ByAgents() bool { return v != LoadEstimate && !v.CountsTraffic() }

// CountsTraffic reports whether load balancers measure it as a rate of what they send to servers.
func (v LoadSource) CountsTraffic() bool { return v == LoadPackets || v == LoadBytes }

// CountsRequests reports whether a load of 1 is one request or connection.
func (v LoadSource) CountsRequests() bool {
	return v == LoadEndpoint || v == LoadConnections || v == LoadEstimate
}

// Placed reports whether the policy is a fixed table of slots, which also places packets without a cookie.
func (v Dispatch) Placed() bool {
	return v == DispatchHash || v == DispatchMaglev || v == DispatchWCMP || v == DispatchChoices
}

// Carried reports whether servers write into the timestamps of such a service's connections.
func (a Affinity) Carried() bool { return a.Cookies() || a == AffinityHistory }

// Cookies reports whether the connections of such a service carry cookies.
func (a Affinity) Cookies() bool { return a == AffinityCookie || a == AffinityTable }

// KeepsIDs reports whether connections of such a service are remembered by their server's id: in cookies, in a table, or in connection ids.
func (a Affinity) KeepsIDs() bool {
	return a.Cookies() || a == AffinityLocal || a == AffinityQUIC || a == AffinityReplicated
}

// Keyed reports whether what connections of such a service carry is written with the cookie keys.
func (a Affinity) Keyed() bool { return a.Cookies() || a == AffinityQUIC }

func nameOf[E ~uint8](names map[E]string, v E) string {
	if name, ok := names[v]; ok {
		return name
	}
	return fmt.Sprintf("invalid(%d)", uint8(v))
}

func marshal[E ~uint8](names map[E]string, v E) ([]byte, error) {
	if name, ok := names[v]; ok {
		return []byte(name), nil
	}
	return nil, fmt.Errorf("value %d has no name: use one of %s", uint8(v), choices(names))
}

func unmarshal[E ~uint8](names map[E]string, v *E, text []byte) error {
	for value, name := range names {
		if name == string(text) {
			*v = value
			return nil
		}
	}
	return &Invalid{Problem: fmt.Sprintf("unknown value %q", text), Remedy: "use one of " + choices(names)}
}

// choices lists the names in the order of their numbers.
func choices[E ~uint8](names map[E]string) string {
	var list []string
	for _, value := range slices.Sorted(maps.Keys(names)) {
		list = append(list, names[value])
	}
	return strings.Join(list, ", ")
}
