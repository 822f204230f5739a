// The sessions with routers: GoBGP as a library.
package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	gobgp "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	// maxReceived are routes that a neighbour may send in a family. None is used, but GoBGP keeps them while the session lasts.
	maxReceived = 10000
	pause       = time.Minute // after a neighbour has sent more
	deferral    = 1           // seconds that a restart waits for what neighbours send: nothing of it counts
)

// speaker has the sessions. Its methods are safe for concurrent use.
type speaker struct {
	log    *slog.Logger
	server *server.BgpServer
	notes  *notes
	stop   context.CancelFunc

	mutex     sync.Mutex
	conf      model.BGP
	password  string
	neighbors map[netip.Addr]*neighbor
	routes    map[netip.Prefix]bool
	changed   func() // a session went up or down
}

// neighbor is a router.
type neighbor struct {
	model.Neighbor
	as          uint32
	established bool
	since       time.Time
	why         string              // the last session ended
	carries     map[bgp.Family]bool // that were agreed on
	withoutIPv4 bool                // it is reached by IPv6, and takes no IPv6 next hops for IPv4 (RFC 8950)
	paused      time.Time           // it sent too many routes: not before
	local       netip.Addr          // of the session
	families    []bgp.Family        // that we offer
}

// startSpeaker starts one without sessions.
func startSpeaker(conf *model.BGP, password string, routerID netip.Addr, changed func(), log *slog.Logger) (*speaker, error) {
	notes := newNotes(log)
	s := &speaker{log: log, notes: notes, server: server.NewBgpServer(server.LoggerOption(slog.New(notes), nil)), conf: *conf, password: password,
		neighbors: map[netip.Addr]*neighbor{}, routes: map[netip.Prefix]bool{}, changed: changed}
	s.conf.Neighbors = nil
	go s.server.Serve()
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	port := int32(-1)
	if conf.ListenPort != 0 {
		port = int32(conf.ListenPort)
	}
	err := s.server.StartBgp(ctx, &gobgp.StartBgpRequest{Global: &gobgp.Global{Asn: conf.AS, RouterId: routerID.String(), ListenPort: port}})
	if err != nil {
		err = fmt.Errorf("start BGP: %w", err)
	} else if err = s.takeOwnAlone(ctx); err == nil {
		err = s.server.WatchEvent(ctx, server.WatchEventMessageCallbacks{OnPeerUpdate: func(e *apiutil.WatchEventMessage_PeerEvent, at time.Time) { s.event(e, at) }}, server.WatchPeer())
	}
	if err != nil {
		s.end(true)
		return nil, err
	}
	return s, nil
}

// takeOwnAlone has routes of neighbours refused.
func (s *speaker) takeOwnAlone(ctx context.Context) error {
	own := &gobgp.Policy{Name: "own", Statements: []*gobgp.Statement{{Name: "own", Conditions: &gobgp.Conditions{RouteType: gobgp.Conditions_ROUTE_TYPE_LOCAL},
		Actions: &gobgp.Actions{RouteAction: gobgp.RouteAction_ROUTE_ACTION_ACCEPT}}}}
	if err := s.server.AddPolicy(ctx, &gobgp.AddPolicyRequest{Policy: own}); err != nil {
		return fmt.Errorf("refuse routes of neighbours: %w", err)
	}
	err := s.server.SetPolicyAssignment(ctx, &gobgp.SetPolicyAssignmentRequest{Assignment: &gobgp.PolicyAssignment{
		Name: "global", Direction: gobgp.PolicyDirection_POLICY_DIRECTION_IMPORT, Policies: []*gobgp.Policy{{Name: "own"}}, DefaultAction: gobgp.RouteAction_ROUTE_ACTION_REJECT}})
	if err != nil {
		return fmt.Errorf("refuse routes of neighbours: %w", err)
	}
	return nil
}

// end ends all sessions. gracefully: neighbours that keep routes over a restart keep them.
func (s *speaker) end(gracefully bool) {
	s.stop()
	s.server.StopBgp(context.Background(), &gobgp.StopBgpRequest{AllowGracefulRestart: gracefully}) // not started: there is nothing to stop
}

// restarts reports whether another configuration needs another speaker.
func (s *speaker) restarts(conf *model.BGP) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return conf.AS != s.conf.AS || conf.RouterID != s.conf.RouterID || conf.ListenPort != s.conf.ListenPort
}

// follow makes sessions with the neighbours of a configuration, and ends others. restarting: routers may have kept routes of ours.
func (s *speaker) follow(conf *model.BGP, password string, restarting bool) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	other := conf.HoldTime != s.conf.HoldTime || conf.Keepalive != s.conf.Keepalive || conf.ConnectRetry != s.conf.ConnectRetry || conf.RestartTime != s.conf.RestartTime ||
		conf.Multihop != s.conf.Multihop || conf.TTLSecurity != s.conf.TTLSecurity || password != s.password
	attributes := !slices.Equal(conf.Communities, s.conf.Communities) || conf.MED != s.conf.MED
	s.conf, s.password = *conf, password
	wanted := map[netip.Addr]model.Neighbor{}
	for _, n := range conf.Neighbors {
		n.AS = conf.ASOf(n)
		wanted[n.Address] = n
	}
	for address, have := range s.neighbors {
		if want, there := wanted[address]; !there || other || want.AS != have.as {
			s.drop(address)
			delete(s.neighbors, address)
		}
	}
	if attributes {
		for prefix := range s.routes {
			if err := s.add(prefix); err != nil {
				return err
			}
		}
	}
	now := time.Now()
	for address, want := range wanted {
		have := s.neighbors[address]
		if have == nil {
			have = &neighbor{Neighbor: want, as: want.AS, since: now}
			s.neighbors[address] = have
		} else if have.paused.IsZero() || now.Before(have.paused) {
			continue
		}
		have.paused = time.Time{}
		if err := s.connect(have, restarting); err != nil {
			delete(s.neighbors, address)
			return err
		}
	}
	return nil
}

// connect begins to look for a session. Its caller holds mutex.
func (s *speaker) connect(n *neighbor, restarting bool) error {
	n.families = []bgp.Family{bgp.RF_IPv4_UC}
	if n.Address.Is6() {
		n.families = []bgp.Family{bgp.RF_IPv6_UC}
		if !n.withoutIPv4 {
			n.families = append(n.families, bgp.RF_IPv4_UC)
		}
	}
	seconds := func(d model.Duration) uint64 { return uint64(time.Duration(d) / time.Second) }
	peer := &gobgp.Peer{
		Conf:   &gobgp.PeerConf{NeighborAddress: n.Address.String(), PeerAsn: n.as, AuthPassword: s.password},
		Timers: &gobgp.Timers{Config: &gobgp.TimersConfig{HoldTime: seconds(s.conf.HoldTime), KeepaliveInterval: seconds(s.conf.Keepalive), ConnectRetry: seconds(s.conf.ConnectRetry)}},
		// Without NOTIFICATIONs (RFC 8538): FRR ends a session by one when BFD says that this host is gone, and would keep the routes then.
		GracefulRestart: &gobgp.GracefulRestart{Enabled: true, RestartTime: uint32(seconds(s.conf.RestartTime)), DeferralTime: deferral, LocalRestarting: restarting},
	}
	if s.conf.Multihop > 1 && n.as != s.conf.AS {
		peer.EbgpMultihop = &gobgp.EbgpMultihop{Enabled: true, MultihopTtl: uint32(s.conf.Multihop)}
	}
	if hops := uint32(s.conf.TTLSecurity); hops > 0 {
		peer.TtlSecurity = &gobgp.TtlSecurity{Enabled: true, TtlMin: 256 - hops}
	}
	for _, family := range n.families {
		of := &gobgp.Family{Afi: gobgp.Family_Afi(family.Afi()), Safi: gobgp.Family_Safi(family.Safi())}
		peer.AfiSafis = append(peer.AfiSafis, &gobgp.AfiSafi{
			Config:            &gobgp.AfiSafiConfig{Family: of, Enabled: true},
			MpGracefulRestart: &gobgp.MpGracefulRestart{Config: &gobgp.MpGracefulRestartConfig{Enabled: true}},
			PrefixLimits:      &gobgp.PrefixLimit{Family: of, MaxPrefixes: maxReceived},
		})
	}
	if err := s.server.AddPeer(context.Background(), &gobgp.AddPeerRequest{Peer: peer}); err != nil {
		return fmt.Errorf("look for a BGP session with %s: %w", n.Address, err)
	}
	return nil
}

// drop ends a session, if there is one. Its caller holds mutex.
func (s *speaker) drop(address netip.Addr) {
	s.server.DeletePeer(context.Background(), &gobgp.DeletePeerRequest{Address: address.String()}) // an unknown one is none
	s.notes.forget(address)
}

// event follows what becomes of a session.
func (s *speaker) event(e *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
	if e.Type != apiutil.PEER_EVENT_STATE {
		return
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	n := s.neighbors[e.Peer.State.NeighborAddress]
	if n == nil {
		return
	}
	switch up := e.Peer.State.SessionState == bgp.BGP_FSM_ESTABLISHED; {
	case up:
		s.established(n, e, at)
	case n.established:
		s.down(n, e, at)
	default:
		return
	}
	s.changed()
}

func (s *speaker) established(n *neighbor, e *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
	n.established, n.since, n.why, n.local = true, at, "", e.Peer.Transport.LocalAddress
	n.carries = agreed(n.families, e.Peer.State.RemoteCap, n.Address.Is6())
	s.notes.forget(n.Address)
	s.log.Info("BGP session is up", "neighbor", n.Address, "AS", n.as, "carries", familyNames(n.carries))
	if n.Address.Is6() && !n.withoutIPv4 && !n.carries[bgp.RF_IPv4_UC] && has(e.Peer.State.RemoteCap, bgp.RF_IPv4_UC) {
		// It would get IPv4 routes with next hops that it does not understand.
		n.withoutIPv4 = true
		s.log.Warn("the neighbour takes no IPv6 next hops for IPv4 VIPs (RFC 8950): it gets IPv6 VIPs alone: make a session over IPv4 as well", "neighbor", n.Address)
		s.again(n)
	}
}

// down looks for a session again. Routes that the neighbour may have kept are good: packets go on, whatever becomes of sessions.
func (s *speaker) down(n *neighbor, e *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
	n.established, n.since, n.carries = false, at, nil
	if n.why = s.notes.last(n.Address); n.why == "" {
		n.why = e.Peer.State.DisconnectMessage
	}
	if e.Peer.State.AdminState == gobgp.PeerState_ADMIN_STATE_PFX_CT {
		n.why = fmt.Sprintf("it sent more than %d routes, and none is wanted: send it none; tried again after %s", maxReceived, pause)
		n.paused = time.Now().Add(pause)
	}
	s.log.Warn("BGP session is down", "neighbor", n.Address, "AS", n.as, "why", n.why)
	s.again(n)
}

// again begins a session anew, as after a restart. Its caller holds mutex.
func (s *speaker) again(n *neighbor) {
	why := n.why
	s.drop(n.Address)
	n.why = why
	if !n.paused.IsZero() {
		return
	}
	if n.established {
		n.established, n.carries, n.since = false, nil, time.Now()
	}
	if err := s.connect(n, true); err != nil {
		s.log.Error("no BGP session", "error", err)
	}
}

// set announces or withdraws.
func (s *speaker) set(prefix netip.Prefix, announce bool) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if announce == s.routes[prefix] {
		return nil
	}
	if announce {
		if err := s.add(prefix); err != nil {
			return err
		}
		s.routes[prefix] = true
		return nil
	}
	path, err := s.path(prefix)
	if err == nil {
		path.Withdrawal = true
		err = s.server.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{path}})
	}
	if err != nil {
		return fmt.Errorf("withdraw %s: %w", prefix, err)
	}
	delete(s.routes, prefix)
	return nil
}

// add announces. Its caller holds mutex.
func (s *speaker) add(prefix netip.Prefix) error {
	path, err := s.path(prefix)
	if err == nil {
		_, err = s.server.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{path}})
	}
	if err != nil {
		return fmt.Errorf("announce %s: %w", prefix, err)
	}
	return nil
}

// path is the route to a VIP: its next hop is the address of each session at this end.
func (s *speaker) path(prefix netip.Prefix) (*apiutil.Path, error) {
	nlri, err := bgp.NewIPAddrPrefix(prefix)
	if err != nil {
		return nil, err
	}
	family, unspecified := bgp.RF_IPv4_UC, netip.IPv4Unspecified()
	if prefix.Addr().Is6() {
		family, unspecified = bgp.RF_IPv6_UC, netip.IPv6Unspecified()
	}
	hop, err := bgp.NewPathAttributeNextHop(unspecified)
	if err != nil {
		return nil, err
	}
	attributes := []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP), hop}
	if s.conf.MED != 0 {
		attributes = append(attributes, bgp.NewPathAttributeMultiExitDisc(s.conf.MED))
	}
	if len(s.conf.Communities) > 0 {
		var values []uint32
		for _, c := range s.conf.Communities {
			values = append(values, uint32(c))
		}
		attributes = append(attributes, bgp.NewPathAttributeCommunities(values))
	}
	return &apiutil.Path{Family: family, Nlri: nlri, Attrs: attributes, Age: time.Now().Unix()}, nil
}

// sessions are the neighbours as they are now, by address.
func (s *speaker) sessions() (list []neighbor) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, address := range slices.SortedFunc(maps.Keys(s.neighbors), netip.Addr.Compare) {
		n := *s.neighbors[address]
		if !n.established && n.paused.IsZero() {
			if last := s.notes.last(address); last != "" {
				n.why = last
			}
		}
		list = append(list, n)
	}
	return list
}

func has(capabilities []bgp.ParameterCapabilityInterface, family bgp.Family) bool {
	return slices.ContainsFunc(capabilities, func(c bgp.ParameterCapabilityInterface) bool {
		mp, ok := c.(*bgp.CapMultiProtocol)
		return ok && mp.CapValue == family
	})
}

// agreed are the families that routes of ours can have.
func agreed(offered []bgp.Family, capabilities []bgp.ParameterCapabilityInterface, ipv6 bool) map[bgp.Family]bool {
	families := map[bgp.Family]bool{}
	any := slices.ContainsFunc(capabilities, func(c bgp.ParameterCapabilityInterface) bool { return c.Code() == bgp.BGP_CAP_MULTIPROTOCOL })
	for _, family := range offered {
		taken := has(capabilities, family) || !any && family == bgp.RF_IPv4_UC
		if family == bgp.RF_IPv4_UC && ipv6 {
			taken = taken && slices.ContainsFunc(capabilities, func(c bgp.ParameterCapabilityInterface) bool {
				hops, ok := c.(*bgp.CapExtendedNexthop)
				return ok && slices.ContainsFunc(hops.Tuples, func(t *bgp.CapExtendedNexthopTuple) bool {
					return t.NLRIAFI == bgp.AFI_IP && t.NLRISAFI == bgp.SAFI_UNICAST && t.NexthopAFI == bgp.AFI_IP6
				})
			})
		}
		if taken {
			families[family] = true
		}
	}
	return families
}

func familyNames(families map[bgp.Family]bool) (names []string) {
	for family, name := range map[bgp.Family]string{bgp.RF_IPv4_UC: "ipv4", bgp.RF_IPv6_UC: "ipv6"} {
		if families[family] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
