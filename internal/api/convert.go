package api

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// FleetToProto returns the fleet, without keys, as a request to make it so.
func FleetToProto(f *model.Fleet) *ballastv1.ApplyRequest {
	return &ballastv1.ApplyRequest{Services: servicesToProto(f.Services), Nodes: nodesToProto(f.Nodes), NodeHealth: nodeHealthToProto(&f.NodeHealth), Replicas: ReplicasToProto(&f.Replicas),
		Unserved: f.Unserved.String()}
}

func servicesToProto(services []model.Service) (list []*ballastv1.Service) {
	for i := range services {
		list = append(list, ServiceToProto(&services[i]))
	}
	return list
}

// ServiceToProto returns the service as it is sent. What is unset stays empty. The two share no memory.
func ServiceToProto(s *model.Service) *ballastv1.Service {
	m := &ballastv1.Service{
		Name: s.Name, Vip: addressText(s.VIP), Destinations: prefixText(s.Destinations), Protocol: nameUnless(s.Protocol, 0), Ports: make([]uint32, len(s.Ports)),
		Dispatch: nameUnless(s.Dispatch, model.DispatchUnset), Affinity: nameUnless(s.Affinity, model.AffinityUnset),
		Fallback: nameUnless(s.Fallback, model.FallbackUnset), CookieBits: uint32(s.CookieBits),
		Session: nameUnless(s.Session, model.SessionNone), SynProxy: nameUnless(s.SYNProxy, model.SYNProxyOff), SynLimit: s.SYNLimit, Announce: nameUnless(s.Announce, model.VIPAuto),
		Forward: nameUnless(s.Forward, model.ForwardUnset), Return: nameUnless(s.Return, model.ReturnUnset), TableSlots: s.TableSlots,
		SlowStart: durationUnlessZero(s.SlowStart),
		Table:     tableToProto(&s.Table), Choices: choicesToProto(&s.Choices), Quic: quicToProto(&s.QUIC), Mptcp: mptcpToProto(&s.MPTCP), Allow: prefixesToProto(s.Allow), Load: loadToProto(&s.Load), Health: HealthToProto(&s.Health), Servers: ServersToProto(s.Servers),
	}
	if p := &s.Placement; *p != (model.Placement{}) {
		m.Placement = &ballastv1.Placement{Over: p.Over.String(), Ipv4Prefix: uint32(p.IPv4Prefix), Ipv6Prefix: uint32(p.IPv6Prefix)}
	}
	m.Predecessor, m.SourceLimit, m.Source = predecessorToProto(&s.Predecessor), sourceLimitToProto(&s.SourceLimit), serverSourceToProto(&s.Source)
	if s.SessionClients != model.SessionClientsUnset {
		m.SessionClients = new(uint32(s.SessionClients))
	}
	if s.Owner != "" {
		m.Owner = proto.String(s.Owner)
	}
	for i, port := range s.Ports {
		m.Ports[i] = uint32(port)
	}
	for _, r := range s.PortRanges {
		m.PortRanges = append(m.PortRanges, r.String())
	}
	if len(s.MoreVIPs) > 0 {
		for _, vip := range s.VIPs() {
			m.Vips = append(m.Vips, vip.String())
		}
	}
	return m
}

// ServersToProto allocates once for all servers: a fleet has tens of thousands.
func ServersToProto(servers []model.Server) []*ballastv1.Server {
	made, weights, list := make([]ballastv1.Server, len(servers)), make([]uint32, len(servers)), make([]*ballastv1.Server, len(servers))
	for i := range servers {
		s, m := &servers[i], &made[i]
		m.Name, m.Address, m.Port, m.Id, m.State = s.Name, addressText(s.Address), uint32(s.Port), uint32(s.ID), s.State.String()
		if s.Weight != model.WeightUnset {
			weights[i] = uint32(s.Weight)
			m.Weight = &weights[i]
		}
		if !s.Deadline.IsZero() {
			m.Deadline = timestamppb.New(s.Deadline)
		}
		list[i] = m
	}
	return list
}

// ServerToProto returns one server as it is sent.
func ServerToProto(s *model.Server) *ballastv1.Server { return ServersToProto([]model.Server{*s})[0] }

func loadToProto(l *model.Load) *ballastv1.Load {
	m := &ballastv1.Load{Source: nameUnless(l.Source, model.LoadUnset), Interval: durationUnlessZero(l.Interval), QueueLimit: l.QueueLimit, Endpoint: l.Endpoint}
	if l.Classes != model.ClassesUnset {
		classes := uint32(l.Classes)
		m.Classes = &classes
	}
	return m
}

// HealthToProto returns how servers are checked as it is sent.
func HealthToProto(h *model.Health) *ballastv1.Health {
	return &ballastv1.Health{
		Check: h.Check.String(), Interval: durationUnlessZero(h.Interval), Timeout: durationUnlessZero(h.Timeout), Rise: uint32(h.Rise),
		Fall: uint32(h.Fall), Port: uint32(h.Port), Path: h.Path, Host: h.Host, Service: h.Service,
		Send: h.Send, Expect: h.Expect, Contains: h.Contains, Query: h.Query, Rcode: h.RCode,
		Command: append([]string(nil), h.Command...), AllDown: h.AllDown.String(), Deadline: durationUnlessZero(h.Deadline),
	}
}

// KeysToProto returns the keys, secrets and all: it is for nodes, never for ctl.
func KeysToProto(k *model.Keys) *ballastv1.Keys {
	m := &ballastv1.Keys{Current: k.Current, Cookie: make(map[uint32][]byte, len(k.Cookie))}
	if k.Placement != [16]byte{} {
		m.Placement = append([]byte(nil), k.Placement[:]...)
	}
	for epoch, key := range k.Cookie {
		m.Cookie[epoch] = append([]byte(nil), key[:]...)
	}
	return m
}

// SharesToProto returns the parts of a table.
func SharesToProto(shares []model.Share) []*ballastv1.Share {
	made, list := make([]ballastv1.Share, len(shares)), make([]*ballastv1.Share, len(shares))
	for i, share := range shares {
		made[i].Id, made[i].Weight = uint32(share.ID), uint32(share.Weight)
		list[i] = &made[i]
	}
	return list
}

// PastToProto returns what a table was made of before, oldest first.
func PastToProto(past [][]model.Share) []*ballastv1.Past {
	list := make([]*ballastv1.Past, len(past))
	for i, shares := range past {
		list[i] = &ballastv1.Past{Shares: SharesToProto(shares)}
	}
	return list
}

// FleetMessage is a message with a fleet: *ballastv1.ApplyRequest, *ballastv1.GetFleetResponse.
type FleetMessage interface {
	GetServices() []*ballastv1.Service
	GetNodes() []*ballastv1.Node
	GetNodeHealth() *ballastv1.Health
	GetReplicas() *ballastv1.Replicas
	GetUnserved() string
}

// FleetFromProto reads a fleet and its keys, which may be nil, without applying defaults or looking for contradictions. Its errors are
// joined from *model.Invalid whose paths are those of the configuration file.
func FleetFromProto(m FleetMessage, keys *ballastv1.Keys) (model.Fleet, error) {
	var in input
	services := m.GetServices()
	fleet := model.Fleet{Services: make([]model.Service, len(services)), Nodes: in.nodes(m.GetNodes())}
	for i, m := range services {
		fleet.Services[i] = model.NewService()
		in.service(fmt.Sprintf("services[%d]", i), &fleet.Services[i], m)
	}
	in.health("node_health", &fleet.NodeHealth, m.GetNodeHealth())
	in.replicas("replicas", &fleet.Replicas, m.GetReplicas())
	in.unserved(&fleet.Unserved, m.GetUnserved())
	if keys != nil {
		in.keys("keys", &fleet.Keys, keys)
	}
	return fleet, errors.Join(in...)
}

// ServiceFromProto reads one service; see FleetFromProto. What is empty is unset.
func ServiceFromProto(m *ballastv1.Service) (model.Service, error) {
	s := model.NewService()
	err := setService(&s, m)
	return s, err
}

// setService sets the fields that m has; empty ones stay as they are. Servers that m has take the place of those of s.
func setService(s *model.Service, m *ballastv1.Service) error {
	var in input
	in.service("services."+m.GetName(), s, m)
	return errors.Join(in...)
}

// ServerFromProto reads one server; see FleetFromProto.
func ServerFromProto(m *ballastv1.Server) (model.Server, error) {
	var in input
	s := in.server("servers."+m.GetName(), m)
	return s, errors.Join(in...)
}

// KeysFromProto reads keys. Its errors are those of FleetFromProto and never repeat a secret.
func KeysFromProto(m *ballastv1.Keys) (model.Keys, error) {
	var in input
	var k model.Keys
	in.keys("keys", &k, m)
	return k, errors.Join(in...)
}

// SharesFromProto reads the parts of a table.
func SharesFromProto(list []*ballastv1.Share) ([]model.Share, error) {
	var in input
	shares := make([]model.Share, len(list))
	for i, m := range list {
		shares[i].ID = narrow[uint16](&in, "shares.id", m.GetId())
		shares[i].Weight = narrow[uint16](&in, "shares.weight", m.GetWeight())
	}
	return shares, errors.Join(in...)
}

// PastFromProto reads what a table was made of before.
func PastFromProto(list []*ballastv1.Past) ([][]model.Share, error) {
	var past [][]model.Share
	for _, m := range list {
		shares, err := SharesFromProto(m.GetShares())
		if err != nil {
			return nil, err
		}
		past = append(past, shares)
	}
	return past, nil
}

// input collects what is wrong with a message.
type input []error

func (in *input) fail(path, remedy, problem string, args ...any) {
	*in = append(*in, &model.Invalid{Path: path, Problem: fmt.Sprintf(problem, args...), Remedy: remedy})
}

func (in *input) service(path string, s *model.Service, m *ballastv1.Service) {
	take(&s.Name, m.GetName())
	if m != nil && m.Owner != nil {
		s.Owner = *m.Owner
	}
	if m.GetVip() != "" {
		s.MoreVIPs = nil
		in.address(path, "vip", &s.VIP, m.GetVip())
	}
	in.vips(path, s, m.GetVips())
	if text := m.GetDestinations(); text != "" {
		parsed, err := model.ParsePrefix(text)
		in.refuse(path, "destinations", err)
		if s.Destinations, s.VIP = parsed, parsed.Addr(); m.GetVip() != "" {
			in.address(path, "vip", &s.VIP, m.GetVip())
		}
	}
	choose(in, path, "protocol", &s.Protocol, m.GetProtocol())
	in.ports(path, s, m)
	in.prefixes(path+".allow", &s.Allow, m.GetAllow())
	choose(in, path, "dispatch", &s.Dispatch, m.GetDispatch())
	choose(in, path, "affinity", &s.Affinity, m.GetAffinity())
	choose(in, path, "session", &s.Session, m.GetSession())
	if m.SessionClients != nil {
		s.SessionClients = in.below(path+".session_clients", *m.SessionClients, model.SessionClientsUnset, model.MaxSessionClients)
	}
	choose(in, path, "syn_proxy", &s.SYNProxy, m.GetSynProxy())
	take(&s.SYNLimit, m.GetSynLimit())
	choose(in, path, "fallback", &s.Fallback, m.GetFallback())
	takeNarrow(in, path+".cookie_bits", &s.CookieBits, m.GetCookieBits())
	choose(in, path, "forward", &s.Forward, m.GetForward())
	choose(in, path, "return", &s.Return, m.GetReturn())
	take(&s.TableSlots, m.GetTableSlots())
	in.table(path+".table", &s.Table, m.GetTable())
	in.choices(path+".choices", &s.Choices, m.GetChoices())
	in.quic(path+".quic", &s.QUIC, m.GetQuic())
	takeNarrow(in, path+".mptcp.first_port", &s.MPTCP.FirstPort, m.GetMptcp().GetFirstPort())
	takeNarrow(in, path+".mptcp.ports", &s.MPTCP.Ports, m.GetMptcp().GetPorts())
	in.load(path+".load", &s.Load, m.GetLoad())
	choose(in, path, "placement.over", &s.Placement.Over, m.GetPlacement().GetOver())
	takeNarrow(in, path+".placement.ipv4_prefix", &s.Placement.IPv4Prefix, m.GetPlacement().GetIpv4Prefix())
	takeNarrow(in, path+".placement.ipv6_prefix", &s.Placement.IPv6Prefix, m.GetPlacement().GetIpv6Prefix())
	in.sourceLimit(path+".source_limit", &s.SourceLimit, m.GetSourceLimit())
	in.predecessor(path+".predecessor", &s.Predecessor, m.GetPredecessor())
	choose(in, path, "announce", &s.Announce, m.GetAnnounce())
	in.duration(path+".slow_start", &s.SlowStart, m.GetSlowStart())
	in.health(path+".health", &s.Health, m.GetHealth())
	in.serverSource(path+".servers", &s.Source, m.GetSource())
	if len(m.GetServers()) > 0 {
		s.Servers = make([]model.Server, len(m.GetServers()))
		for i, server := range m.GetServers() {
			before := len(*in)
			s.Servers[i] = in.server("", server)
			for _, err := range (*in)[before:] { // a path is only made where it is needed
				invalid := err.(*model.Invalid)
				invalid.Path = fmt.Sprintf("%s.servers[%d]%s", path, i, invalid.Path)
			}
		}
	}
}

func (in *input) ports(path string, s *model.Service, m *ballastv1.Service) {
	if len(m.GetPorts())+len(m.GetPortRanges()) == 0 {
		return
	}
	s.Ports, s.PortRanges = nil, nil
	for _, port := range m.GetPorts() {
		s.Ports = append(s.Ports, narrow[uint16](in, path+".ports", port))
	}
	for _, text := range m.GetPortRanges() {
		in.refuse(path, "port_ranges", s.AddPorts(text))
	}
}

func (in *input) server(path string, m *ballastv1.Server) model.Server {
	s := model.NewServer()
	s.Name = m.GetName()
	in.address(path, "address", &s.Address, m.GetAddress())
	takeNarrow(in, path+".port", &s.Port, m.GetPort())
	s.ID = narrow[uint16](in, path+".id", m.GetId())
	if m.GetWeight() > model.MaxWeight {
		in.fail(path+".weight", fmt.Sprintf("use 0 to %d", model.MaxWeight), "%d is out of range", m.GetWeight())
	} else if m != nil && m.Weight != nil {
		s.Weight = uint16(m.GetWeight())
	}
	choose(in, path, "state", &s.State, m.GetState())
	if at := m.GetDeadline(); at != nil {
		if at.CheckValid() != nil || at.AsTime().Year() > 9999 {
			in.fail(path+".deadline", "write it like 2026-01-31T23:00:00Z", "not a time")
		} else {
			s.Deadline = at.AsTime()
		}
	}
	return s
}

func (in *input) load(path string, l *model.Load, m *ballastv1.Load) {
	if m == nil {
		return
	}
	choose(in, path, "source", &l.Source, m.Source)
	in.positive(path+".interval", &l.Interval, m.Interval)
	if m.Classes != nil {
		l.Classes = in.below(path+".classes", *m.Classes, model.ClassesUnset, model.MaxClasses)
	}
	take(&l.QueueLimit, m.QueueLimit)
	take(&l.Endpoint, m.Endpoint)
}

func (in *input) health(path string, h *model.Health, m *ballastv1.Health) {
	if m == nil {
		return
	}
	choose(in, path, "check", &h.Check, m.Check)
	in.positive(path+".interval", &h.Interval, m.Interval)
	in.positive(path+".timeout", &h.Timeout, m.Timeout)
	takeNarrow(in, path+".rise", &h.Rise, m.Rise)
	takeNarrow(in, path+".fall", &h.Fall, m.Fall)
	takeNarrow(in, path+".port", &h.Port, m.Port)
	take(&h.Path, m.Path)
	take(&h.Send, m.Send)
	take(&h.Expect, m.Expect)
	take(&h.Contains, m.Contains)
	take(&h.Query, m.Query)
	take(&h.RCode, m.Rcode)
	take(&h.Host, m.Host)
	take(&h.Service, m.Service)
	if len(m.Command) > 0 {
		h.Command = append([]string(nil), m.Command...)
	}
	choose(in, path, "all_down", &h.AllDown, m.AllDown)
	in.duration(path+".deadline", &h.Deadline, m.Deadline)
}

func (in *input) keys(path string, k *model.Keys, m *ballastv1.Keys) {
	k.Current = m.GetCurrent()
	if len(m.GetPlacement()) > 0 {
		in.key(path+".placement", &k.Placement, m.GetPlacement())
	}
	for epoch, secret := range m.GetCookie() {
		var key [16]byte
		in.key(fmt.Sprintf("%s.cookie.%d", path, epoch), &key, secret)
		if k.Cookie == nil {
			k.Cookie = make(map[uint32][16]byte, len(m.GetCookie()))
		}
		k.Cookie[epoch] = key
	}
}

func (in *input) key(path string, key *[16]byte, secret []byte) {
	if len(secret) != len(key) {
		in.fail(path, "create one with `ballast ctl key generate`", "a key has 16 bytes, not %d", len(secret))
		return
	}
	*key = [16]byte(secret)
}

func (in *input) address(path, key string, address *netip.Addr, text string) {
	if text == "" {
		return
	}
	parsed, err := model.ParseAddress(text)
	in.refuse(path, key, err)
	*address = parsed
}

// positive reads a duration that has a default: 0 would mean that, so nobody may write it.
func (in *input) positive(path string, d *model.Duration, m *durationpb.Duration) {
	if in.duration(path, d, m); m != nil && *d == 0 {
		in.fail(path, "use a value within the range, or leave it out", "0s is out of range")
	}
}

func (in *input) duration(path string, d *model.Duration, m *durationpb.Duration) {
	if m == nil {
		return
	}
	if m.CheckValid() != nil || m.Seconds > math.MaxInt64/int64(time.Second)-1 || m.Seconds < 0 {
		in.fail(path, "use a duration from 0s to 100 years", "not such a duration")
		return
	}
	*d = model.Duration(m.AsDuration())
}

// choose reads the name of a choice.
func choose(in *input, path, key string, target encoding.TextUnmarshaler, text string) {
	if text == "" {
		return
	}
	in.refuse(path, key, target.UnmarshalText([]byte(text)))
}

// refuse notes an error of the model, nil: there is none.
func (in *input) refuse(path, key string, err error) {
	var invalid *model.Invalid
	if errors.As(err, &invalid) {
		in.fail(path+"."+key, invalid.Remedy, "%s", invalid.Problem)
	}
}

// take sets a field to what a message has, if it has something.
func take[V comparable](field *V, value V) {
	var nothing V
	if value != nothing {
		*field = value
	}
}

// takeNarrow is take for a field that is narrower than the message's.
func takeNarrow[N uint8 | uint16](in *input, path string, field *N, value uint32) {
	if value != 0 {
		*field = narrow[N](in, path, value)
	}
}

// narrow refuses what does not fit the field.
func narrow[N uint8 | uint16](in *input, path string, value uint32) N {
	if value > uint32(^N(0)) {
		in.fail(path, fmt.Sprintf("use 0 to %d", ^N(0)), "%d is out of range", value)
		return 0
	}
	return N(value)
}

// below reads a number that may be 0, and so has another value for unset. What is above most is left for the model to refuse.
func (in *input) below(path string, value uint32, unset, most uint8) uint8 {
	n := narrow[uint8](in, path, value)
	if n == unset {
		in.fail(path, fmt.Sprintf("use 0 to %d", most), "%d is out of range", value)
	}
	return n
}

func nameUnless[E interface {
	comparable
	fmt.Stringer
}](v, unset E) string {
	if v == unset {
		return ""
	}
	return v.String()
}

func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func prefixText(p model.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

func durationUnlessZero(d model.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(time.Duration(d))
}
