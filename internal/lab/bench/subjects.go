package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/algo/candidates"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/algo/pathid"
	"github.com/ballast-lb/ballast/internal/algo/quiclb"
	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Implementation constants: a service of ordinary size.
const (
	servers     = 16
	cookieEpoch = 1

	quicServer        = 5 // that all measured connection ids name
	quicFourPassNonce = 5
	quicKnown         = 16 // connections of which a first flight's further datagrams come: they follow the first, whose entry is in the cache

	outerLength = 20 // IPv4
	outerIPv6   = 40
	outerGUE    = 32                 // over IPv4
	outerStops  = outerGUE + 4 + 2*4 // of one, or two
	outerSRv6   = outerIPv6 + 8 + 2*16
	loopback    = 1 // test runs come in by the loopback device; answering there is XDP_TX
)

// The services of the load balancer under test.
var (
	hashVIP = netip.MustParseAddr("198.51.100.1")
	rrVIP   = netip.MustParseAddr("198.51.100.2")
	p2cVIP  = netip.MustParseAddr("198.51.100.3")
	minVIP  = netip.MustParseAddr("198.51.100.4")
	awrrVIP = netip.MustParseAddr("198.51.100.5")
	awfdVIP = netip.MustParseAddr("198.51.100.6")
	gueVIP  = netip.MustParseAddr("198.51.100.7")
	ipv6VIP = netip.MustParseAddr("2001:db8::1")

	// Two candidates.
	choicesVIP = netip.MustParseAddr("198.51.100.8") // by GUE
	srv6VIP    = netip.MustParseAddr("198.51.100.9")
	historyVIP = netip.MustParseAddr("198.51.100.10")

	// QUIC, by the algorithm of connection ids.
	quicVIPs = []netip.Addr{netip.MustParseAddr("198.51.100.11"), netip.MustParseAddr("198.51.100.12"), netip.MustParseAddr("198.51.100.13")}

	// With session: tls.
	sessionVIP = netip.MustParseAddr("198.51.100.14")

	l2VIP      = netip.MustParseAddr("198.51.100.15")
	udpHashVIP = netip.MustParseAddr("198.51.100.16")

	// By hash, when all connections may be at the server that had their slot before.
	stopVIP = netip.MustParseAddr("198.51.100.17")

	vips     = []netip.Addr{hashVIP, rrVIP, p2cVIP, minVIP, awrrVIP, awfdVIP, gueVIP, ipv6VIP, choicesVIP, srv6VIP, historyVIP}
	policies = map[netip.Addr]model.Dispatch{hashVIP: model.DispatchMaglev, rrVIP: model.DispatchRR, p2cVIP: model.DispatchP2C,
		minVIP: model.DispatchLeast, awrrVIP: model.DispatchAWRR, awfdVIP: model.DispatchAWFD, gueVIP: model.DispatchRR, ipv6VIP: model.DispatchRR,
		choicesVIP: model.DispatchChoices, srv6VIP: model.DispatchChoices, historyVIP: model.DispatchChoices}
)

// rig holds the loaded programs.
type rig struct {
	runner
	lb     *lb.LB
	hits   *replicaHits
	fleet  model.Fleet
	places map[string]plan.Place
	begun  uint32 // connections of QUIC
}

// openRig loads all; the servers are behind the device.
func openRig(device uint32) (*rig, error) {
	r := &rig{fleet: fleet()}
	var err error
	if r.programs, err = wrapper.Open(); err != nil {
		return nil, err
	}
	if r.verdicts, err = lb.VerdictNames(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	if r.lb, err = lb.Open("", plan.DefaultLimits); err != nil {
		return nil, errors.Join(err, r.close())
	}
	if r.places, err = publish(r.lb, plan.DefaultLimits, &r.fleet, device); err != nil {
		return nil, errors.Join(err, r.close())
	}
	if r.hits, err = openReplicaHits(device); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *rig) close() error {
	var errs []error
	if r.hits != nil {
		errs = append(errs, r.hits.Close())
	}
	if r.lb != nil {
		errs = append(errs, r.lb.Close())
	}
	return errors.Join(append(errs, r.programs.Close())...)
}

// publish makes a load balancer serve the fleet, whose servers are behind a device, and tells where everything is.
func publish(lb *lb.LB, limits plan.Limits, fleet *model.Fleet, device uint32) (map[string]plan.Place, error) {
	return apply(lb, limits, wantOf(fleet, device))
}

// wantOf is what a load balancer is to have of a fleet whose servers are behind a device.
func wantOf(fleet *model.Fleet, device uint32) *plan.Want {
	want := &plan.Want{Keys: fleet.Keys, Paths: map[netip.Addr]plan.Path{}}
	for _, s := range fleet.Services {
		planned := plan.Service{Service: s, Weights: softWeights()}
		if s.VIP == stopVIP {
			planned.Removed = formerServers()
			former := model.Service{Servers: planned.Removed}
			planned.Past = [][]model.Share{former.Shares()}
		}
		want.Services = append(want.Services, planned)
		for _, server := range slices.Concat(s.Servers, planned.Removed) {
			source := ourAddress
			if server.Address.Is6() {
				source = ourIPv6
			}
			want.Paths[server.Address] = plan.Path{Ifindex: device, Source: source, SourceMAC: [6]byte(ourMAC), DestinationMAC: macOf(server.Address), MTU: 1500}
		}
	}
	return want
}

func apply(lb *lb.LB, limits plan.Limits, want *plan.Want) (map[string]plan.Place, error) {
	tables := plan.NewTables(limits)
	changes, err := tables.Update(want)
	if err != nil {
		return nil, fmt.Errorf("plan the measured services: %w", err)
	}
	return tables.Places(), lb.Apply(changes)
}

func keys() model.Keys {
	return model.Keys{Placement: [16]byte{1}, Current: cookieEpoch, Cookie: map[uint32][16]byte{cookieEpoch: {2, 3}}}
}

func newService(vip netip.Addr, dispatch model.Dispatch) model.Service {
	s := model.NewService()
	s.Name, s.VIP, s.Ports, s.Dispatch = vip.String(), vip, []uint16{servicePort}, dispatch
	for id := uint16(1); id <= servers; id++ {
		server := model.NewServer()
		if server.ID, server.Address = id, serverAddress(id); vip.Is6() || vip == srv6VIP {
			server.Address = serverIPv6(id)
		} else if vip == l2VIP || vip == throughVIP {
			server.Address = serverByL2(id)
		}
		s.Servers = append(s.Servers, server)
	}
	return s
}

// formerServers had all slots of a service before its servers have them.
func formerServers() (all []model.Server) {
	for id := uint16(servers + 1); id <= 2*servers; id++ {
		server := model.NewServer()
		server.ID, server.Address = id, serverAddress(id)
		all = append(all, server)
	}
	return all
}

func fleet() model.Fleet {
	f := model.Fleet{Keys: keys()}
	for _, vip := range vips {
		s := newService(vip, policies[vip])
		switch vip {
		case gueVIP, choicesVIP:
			s.Forward = model.ForwardGUE
		case srv6VIP:
			s.Forward = model.ForwardSRv6
		case historyVIP:
			s.Affinity = model.AffinityHistory
		case hashVIP:
			s.Affinity, s.Fallback = model.AffinityHash, model.FallbackHash
		}
		f.Services = append(f.Services, s)
	}
	for i, vip := range quicVIPs {
		s := newService(vip, model.DispatchRR)
		s.Protocol, s.Affinity, s.Fallback, s.QUIC.Algorithm = model.ProtocolUDP, model.AffinityQUIC, model.FallbackHash, model.QUICAlgorithm(i)
		if s.QUIC.Algorithm == model.QUICFourPass {
			s.QUIC.NonceLength = quicFourPassNonce
		}
		f.Services = append(f.Services, s)
	}
	l2, udp := newService(l2VIP, model.DispatchRR), newService(udpHashVIP, model.DispatchMaglev)
	l2.Forward = model.ForwardL2
	udp.Protocol, udp.Affinity, udp.Fallback = model.ProtocolUDP, model.AffinityHash, model.FallbackHash
	sessions := newService(sessionVIP, model.DispatchRR)
	sessions.Session, sessions.SessionClients = model.SessionTLS, 0 // all measured hellos show one ticket: it has no limit of clients
	stop := newService(stopVIP, model.DispatchMaglev)
	stop.Affinity, stop.Fallback, stop.Forward = model.AffinityHash, model.FallbackSecondChance, model.ForwardGUE
	f.Services = append(f.Services, l2, udp, sessions, stop, throughService())
	f.Services = append(f.Services, guardedServices()...)
	f.ApplyDefaults()
	return f
}

// softWeights put the servers in all classes.
func softWeights() map[uint16]uint16 {
	weights := map[uint16]uint16{}
	for id := uint16(1); id <= servers; id++ {
		weights[id] = 1 + id%model.DefaultClasses
	}
	return weights
}

func serverAddress(id uint16) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, 0, byte(id)}) }

// serverByL2 is a server whose link-layer address names it.
func serverByL2(id uint16) netip.Addr { return netip.AddrFrom4([4]byte{10, 2, 0, byte(id)}) }

func macOf(server netip.Addr) [6]byte {
	if server.Is4() && server.As4()[1] == 2 {
		return [6]byte{2, 0, 0, 0, 3, server.As4()[3]}
	}
	return [6]byte(serverMAC)
}

func serverIPv6(id uint16) netip.Addr { return netip.AddrFrom16([16]byte{0xfd, 15: byte(id)}) }

// plainCell is a segment to vip that carries no cookie.
func plainCell(vip netip.Addr, kind kind) wrapper.Cell {
	return wrapper.Cell{Frame: frame(vip, kind, optionsOf(kind)), IPv6: vip.Is6()}
}

// quicCell is a packet of QUIC with a short header, whose connection id names one server: reading it costs the same for all.
func (r *rig) quicCell(vip netip.Addr) wrapper.Cell {
	s := r.fleet.Service(vip.String())
	c := quiclb.Config{ID: plan.QUICConfigNumber(cookieEpoch), Key: plan.ConnectionIDKey(r.fleet.Keys.Cookie[cookieEpoch], vip), Algorithm: quiclb.Algorithm(s.QUIC.Algorithm),
		ServerIDLength: int(s.QUIC.ServerIDLength), NonceLength: int(s.QUIC.NonceLength)}
	id, err := c.Encode(binary.BigEndian.AppendUint16(nil, quicServer), make([]byte, c.NonceLength))
	if err != nil {
		panic(fmt.Sprintf("make a connection id: %v", err))
	}
	return wrapper.Cell{Frame: datagramFrame(vip, append([]byte{0x40}, id...))}
}

// carryingCell is one that carries the cookie of the service at vip.
func carryingCell(fleet *model.Fleet, vip netip.Addr, kind kind) wrapper.Cell {
	cell := plainCell(vip, kind)
	cell.CookieBits, cell.EpochParity, cell.IDs = fleet.Service(vip.String()).CookieBits, cookieEpoch&1, servers
	cell.CookieKey = cookie.ServiceKey(fleet.Keys.Cookie[cookieEpoch], vip, model.ProtocolTCP)
	return cell
}

// subjects lists the rows; the first is the control of rows that are fed the same frames.
func (r *rig) subjects() []subject {
	ack, hashed := plainCell(rrVIP, segmentACK), plainCell(hashVIP, segmentACK)
	carrying, short := carryingCell(&r.fleet, rrVIP, segmentACK), ack
	short.Frame = frame(rrVIP, segmentACK, nil)
	b, lb := r.programs, r.lb.Program()
	place := func(vip netip.Addr) plan.Place { return r.places[vip.String()] }
	all := []subject{
		{name: "empty", program: b.Empty(), cell: ack, keeps: true, check: checkUnchanged},
		{name: "parse-swap", program: b.ParseSwap(), cell: ack, keeps: true, check: checkSwapped},
		{name: "minimal-ipip", program: b.MinimalIPIP(), cell: ack, check: checkMinimal},
		{name: "hash", program: lb, cell: hashed, verdict: "forwarded_by_hash", place: place(hashVIP), check: r.checkPlaced(hashVIP)},
		{name: "cookie", program: lb, cell: carrying, verdict: "forwarded_by_cookie", place: place(rrVIP), check: checkCookie},
	}
	ipv6, gue := carryingCell(&r.fleet, ipv6VIP, segmentACK), carryingCell(&r.fleet, gueVIP, segmentACK)
	ipv6.Growth, gue.Growth = outerIPv6, outerGUE
	all = append(all,
		subject{name: "cookie-ipv6", program: lb, cell: ipv6, verdict: "forwarded_by_cookie", place: place(ipv6VIP), check: checkCookieIPv6},
		subject{name: "cookie-gue", program: lb, cell: gue, verdict: "forwarded_by_cookie", place: place(gueVIP), check: checkCookieGUE})
	for _, vip := range vips[1:] {
		if vip != gueVIP && vip != ipv6VIP && policies[vip] != model.DispatchChoices {
			all = append(all, subject{name: "syn-" + policies[vip].String(), program: lb, cell: plainCell(vip, segmentSYN), verdict: "forwarded_new",
				place: place(vip), check: checkAnyServer})
		}
	}
	choices, srv6 := plainCell(choicesVIP, segmentSYN), plainCell(srv6VIP, segmentSYN)
	choices.Growth, srv6.Growth = outerStops, outerSRv6
	all = append(all,
		subject{name: "syn-choices", program: lb, cell: choices, verdict: "forwarded_new", place: place(choicesVIP), check: r.checkStops},
		subject{name: "syn-choices-srv6", program: lb, cell: srv6, verdict: "forwarded_new", place: place(srv6VIP), check: r.checkSegments},
		subject{name: "history", program: lb, cell: plainCell(historyVIP, segmentACK), verdict: "forwarded_by_history", place: place(historyVIP), check: r.checkColumn})
	for i, vip := range quicVIPs {
		all = append(all, subject{name: "quic-" + model.QUICAlgorithm(i).String(), program: lb, cell: r.quicCell(vip), verdict: "forwarded_by_cookie", place: place(vip),
			check: func(output []byte, s sent) error {
				return checkServer(output, s, serverAddress(quicServer), identification)
			}})
	}
	all = append(all, r.initials(quicVIPs[0])...)
	all = append(all,
		subject{name: "udp-hash", program: lb, cell: wrapper.Cell{Frame: datagramFrame(udpHashVIP, nil)}, verdict: "forwarded_by_hash", place: place(udpHashVIP),
			check: r.checkPlaced(udpHashVIP)},
		subject{name: "cookie-l2", program: lb, cell: carryingCell(&r.fleet, l2VIP, segmentACK), keeps: true, verdict: "forwarded_by_cookie", place: place(l2VIP),
			check: checkCookieL2})
	all = append(all, r.sessionSubjects()...)
	all = append(all, r.guardedSubjects()...)
	all = append(all, subject{name: "no-timestamp", program: lb, cell: short, verdict: "forwarded_no_timestamp", place: place(rrVIP), check: r.checkPlaced(rrVIP)},
		r.hits.subject())
	for i := range all {
		if all[i].verdict != "" && all[i].lb == nil {
			all[i].lb = r.lb
		}
		if !all[i].keeps && all[i].cell.Growth == 0 {
			all[i].cell.Growth = outerLength
		}
	}
	return all
}

// initials are of a first flight's datagrams: the first one, of a connection that nobody knows, and those behind it. Their clients draw ids of 8
// bytes, as Chromium does.
func (r *rig) initials(vip netip.Addr) []subject {
	datagram := func(drawn byte) wrapper.Cell {
		return wrapper.Cell{Frame: datagramFrame(vip, []byte{0xc0, 0, 0, 0, 1, 8, drawn, 2, 3, 4, 5, 6, 7, 8}), Growth: outerLength}
	}
	first := subject{name: "quic-initial", program: r.lb.Program(), verdict: "forwarded_new", place: r.places[vip.String()], check: checkAnyServer, fresh: &r.begun,
		lb: r.lb, cell: datagram(1)}
	known := first
	known.name, known.verdict, known.fresh, known.only, known.cell = "quic-initial-known", "forwarded_starting", nil, quicKnown, datagram(2)
	known.prepare = func() error {
		err := errors.Join(r.programs.Put(known.program), r.programs.List(&known.cell, sequence(0, quicKnown), nil))
		if err != nil {
			return err
		}
		_, err = r.programs.Run(quicKnown)
		return err
	}
	return []subject{first, known}
}

func checkMinimal(output []byte, s sent) error {
	return checkServer(output, s, serverAddress(1), func(netip.Addr) uint16 { return 0 })
}

// identification is that of our own program's outer headers.
func identification(server netip.Addr) uint16 {
	return pathid.Identification(pathid.Secret(keys().Placement, server))
}

func checkCookie(output []byte, s sent) error {
	return checkServer(output, s, serverAddress(s.server()), identification)
}

// checkCookieL2: only the link-layer addresses have changed.
func checkCookieL2(output []byte, s sent) error {
	mac, in := macOf(serverByL2(s.server())), s.bytes()
	return checkSame(output, slices.Concat(mac[:], ourMAC, in[12:]))
}

func checkCookieIPv6(output []byte, s sent) error {
	return checkIPv6(output, s, serverIPv6(s.server()), layers.IPProtocolIPv6, nil)
}

func checkCookieGUE(output []byte, s sent) error {
	return checkGUE(output, s, serverAddress(s.server()), nil)
}

func checkAnyServer(output []byte, s sent) error {
	_, err := checkEncapsulated(output, s, identification)
	return err
}

// checkPlaced checks against the table that every node computes.
func (r *rig) checkPlaced(vip netip.Addr) func([]byte, sent) error {
	key := cookie.ServiceKey(r.fleet.Keys.Placement, vip, r.fleet.Service(vip.String()).Protocol)
	owners := maglev.Table(model.DefaultSlots, r.fleet.Services[0].Shares())
	if vip != hashVIP {
		owners = maglev.Table(model.DefaultSlots, r.fleet.Services[1].Shares())
	}
	return func(output []byte, s sent) error {
		slot := cookie.Slot(cookie.FlowHash(key, wrapper.Client(s.flow), servicePort), model.DefaultSlots)
		return checkServer(output, s, serverAddress(owners[slot]), identification)
	}
}

// candidates are those of a flow to a service at vip: the table that every node computes.
func (r *rig) candidates(vip netip.Addr, s sent) []uint16 {
	key := cookie.ServiceKey(r.fleet.Keys.Placement, vip, model.ProtocolTCP)
	service := r.fleet.Service(vip.String())
	columns := candidates.Columns(model.DefaultSlots, model.DefaultCandidates, service.Shares())
	slot := cookie.Slot(cookie.FlowHash(key, wrapper.Client(s.flow), servicePort), model.DefaultSlots)
	return columns[slot*model.DefaultCandidates:][:model.DefaultCandidates]
}

// checkColumn: every echo names the column in its low bits.
func (r *rig) checkColumn(output []byte, s sent) error {
	return checkServer(output, s, serverAddress(r.candidates(historyVIP, s)[ackOptions[len(ackOptions)-1]&3]), identification)
}

func (r *rig) checkStops(output []byte, s sent) error {
	found := r.candidates(choicesVIP, s)
	stops := slices.Concat([]byte{1, 0, 1, 0}, serverAddress(found[1]).AsSlice(), make([]byte, 4))
	return checkGUE(output, s, serverAddress(found[0]), stops)
}

// stopped is a packet of a known connection that goes by hash: with the server that had its slot before as a stop.
func (r *rig) stopped() subject {
	cell := plainCell(stopVIP, segmentACK)
	cell.Growth = outerStops
	key := cookie.ServiceKey(r.fleet.Keys.Placement, stopVIP, model.ProtocolTCP)
	former := model.Service{Servers: formerServers()}
	now, before := maglev.Table(model.DefaultSlots, r.fleet.Service(stopVIP.String()).Shares()), maglev.Table(model.DefaultSlots, former.Shares())
	return subject{name: "hash-stop", program: r.lb.Program(), lb: r.lb, cell: cell, verdict: "forwarded_by_hash", place: r.places[stopVIP.String()],
		check: func(output []byte, s sent) error {
			slot := cookie.Slot(cookie.FlowHash(key, wrapper.Client(s.flow), servicePort), model.DefaultSlots)
			stops := slices.Concat([]byte{1, 0, 1, 0}, serverAddress(before[slot]).AsSlice(), make([]byte, 4))
			return checkGUE(output, s, serverAddress(now[slot]), stops)
		}}
}

func (r *rig) checkSegments(output []byte, s sent) error {
	found := r.candidates(srv6VIP, s)
	header := slices.Concat([]byte{4, 4, 4, 1, 1, 0, 0, 0}, serverIPv6(found[1]).AsSlice(), serverIPv6(found[0]).AsSlice())
	return checkIPv6(output, s, serverIPv6(found[0]), layers.IPProtocolIPv6Routing, header)
}

func checkServer(output []byte, s sent, want netip.Addr, identification func(netip.Addr) uint16) error {
	got, err := checkEncapsulated(output, s, identification)
	if err == nil && got != want {
		err = fmt.Errorf("the packet goes to %s, want %s", got, want)
	}
	return err
}
