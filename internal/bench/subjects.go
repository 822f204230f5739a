package bench

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/linux/datapath"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Implementation constants: a service of ordinary size.
const (
	servers     = 16
	cookieEpoch = 1
	outerLength = 20
	loopback    = 1 // test runs come in by the loopback device; answering there is XDP_TX
)

// The services of the load balancer under test, in the order of their numbers from 1.
var (
	hashVIP  = netip.MustParseAddr("198.51.100.1")
	rrVIP    = netip.MustParseAddr("198.51.100.2")
	p2cVIP   = netip.MustParseAddr("198.51.100.3")
	leastVIP = netip.MustParseAddr("198.51.100.4")
	awrrVIP  = netip.MustParseAddr("198.51.100.5")
	awfdVIP  = netip.MustParseAddr("198.51.100.6")
	vips     = []netip.Addr{hashVIP, rrVIP, p2cVIP, leastVIP, awrrVIP, awfdVIP}
	policies = map[netip.Addr]model.Dispatch{hashVIP: model.DispatchMaglev, rrVIP: model.DispatchRR, p2cVIP: model.DispatchP2C,
		leastVIP: model.DispatchLeast, awrrVIP: model.DispatchAWRR, awfdVIP: model.DispatchAWFD}
)

// A subject is one row of the table: a program and what it is fed.
type subject struct {
	name    string
	program *datapath.Program
	cell    datapath.BenchCell
	verdict string // that every packet must get; "": the program counts none
	service uint32 // number
	check   func(output []byte, cell datapath.BenchCell, flow uint32) error
}

// rig holds the loaded programs.
type rig struct {
	programs *datapath.Bench
	lb       *datapath.LB
	verdicts []string
	fleet    model.Fleet
}

func openRig() (*rig, error) {
	r := &rig{fleet: fleet()}
	var err error
	if r.programs, err = datapath.OpenBench(); err != nil {
		return nil, err
	}
	if r.verdicts, err = datapath.VerdictNames(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	if r.lb, err = datapath.OpenLB("", plan.DefaultLimits); err != nil {
		return nil, errors.Join(err, r.close())
	}
	if err := r.fill(path{ifindex: loopback, source: [6]byte(ourMAC), destination: [6]byte(serverMAC)}); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *rig) close() error {
	var errs []error
	if r.lb != nil {
		errs = append(errs, r.lb.Close())
	}
	return errors.Join(append(errs, r.programs.Close())...)
}

// path is the one way to all servers.
type path struct {
	ifindex             uint32
	source, destination [6]byte
}

// fill publishes the services.
func (r *rig) fill(way path) error {
	want := plan.Want{Keys: r.fleet.Keys, Paths: map[netip.Addr]plan.Path{}}
	for _, s := range r.fleet.Services {
		want.Services = append(want.Services, plan.Service{Service: s, Weights: softWeights()})
		for _, server := range s.Servers {
			want.Paths[server.Address] = plan.Path{Ifindex: way.ifindex, Source: ourAddress, SourceMAC: way.source,
				DestinationMAC: way.destination, MTU: 1500}
		}
	}
	changes, err := plan.NewTables(plan.DefaultLimits).Update(&want)
	if err != nil {
		return fmt.Errorf("plan the measured services: %w", err)
	}
	return r.lb.Apply(changes)
}

func fleet() model.Fleet {
	f := model.Fleet{Keys: model.Keys{Placement: [16]byte{1}, Current: cookieEpoch,
		Cookie: map[uint32][16]byte{cookieEpoch: {2, 3}}}}
	for _, vip := range vips {
		s := model.NewService()
		s.Name, s.VIP, s.Ports, s.Dispatch = vip.String(), vip, []uint16{servicePort}, policies[vip]
		if vip == hashVIP {
			s.Affinity, s.Fallback = model.AffinityHash, model.FallbackHash
		}
		for id := uint16(1); id <= servers; id++ {
			server := model.NewServer()
			server.ID, server.Address = id, serverAddress(id)
			s.Servers = append(s.Servers, server)
		}
		f.Services = append(f.Services, s)
	}
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

// subjects lists the rows; the first is the control of rows that are fed the same frames.
func (r *rig) subjects() []subject {
	ack := datapath.BenchCell{Frame: frame(rrVIP, false, ackOptions), ServicePort: [2]byte{0, servicePort}}
	carrying := ack
	carrying.CookieBits, carrying.EpochParity, carrying.IDs = model.DirectCookieBits, cookieEpoch&1, servers
	carrying.CookieKey = cookie.ServiceKey(r.fleet.Keys.Cookie[cookieEpoch], rrVIP, model.ProtocolTCP)
	hashed, short := ack, ack
	hashed.Frame = frame(hashVIP, false, ackOptions)
	short.Frame = frame(rrVIP, false, nil)
	b, lb := r.programs, r.lb.Program()
	all := []subject{
		{name: "empty", program: b.Empty(), cell: ack, check: func(output []byte, cell datapath.BenchCell, flow uint32) error {
			return checkSame(output, sent(cell, flow))
		}},
		{name: "parse-swap", program: b.ParseSwap(), cell: ack, check: checkSwapped},
		{name: "minimal-ipip", program: b.MinimalIPIP(), cell: ack, check: checkMinimal},
		{name: "hash", program: lb, cell: hashed, verdict: "forwarded_by_hash", service: 1, check: r.checkPlaced(hashVIP)},
		{name: "cookie", program: lb, cell: carrying, verdict: "forwarded_by_cookie", service: 2, check: checkCookie},
	}
	for i, vip := range vips {
		if vip != hashVIP {
			syn := ack
			syn.Frame = frame(vip, true, synOptions)
			all = append(all, subject{name: "syn-" + policies[vip].String(), program: lb, cell: syn, verdict: "forwarded_new",
				service: uint32(i + 1), check: checkAnyServer})
		}
	}
	all = append(all, subject{name: "no-timestamp", program: lb, cell: short, verdict: "forwarded_no_timestamp", service: 2, check: r.checkPlaced(rrVIP)})
	for i := range all {
		if i >= 2 {
			all[i].cell.Growth = outerLength
		}
	}
	return all
}

func checkMinimal(output []byte, cell datapath.BenchCell, flow uint32) error {
	return checkServer(output, cell, flow, serverAddress(1))
}

func checkCookie(output []byte, cell datapath.BenchCell, flow uint32) error {
	return checkServer(output, cell, flow, serverAddress(uint16(1+flow%servers)))
}

func checkAnyServer(output []byte, cell datapath.BenchCell, flow uint32) error {
	_, err := checkEncapsulated(output, cell, flow)
	return err
}

// checkPlaced checks against the table that every node computes.
func (r *rig) checkPlaced(vip netip.Addr) func([]byte, datapath.BenchCell, uint32) error {
	key := cookie.ServiceKey(r.fleet.Keys.Placement, vip, model.ProtocolTCP)
	owners := maglev.Table(model.DefaultSlots, r.fleet.Services[0].Shares())
	if vip != hashVIP {
		owners = maglev.Table(model.DefaultSlots, r.fleet.Services[1].Shares())
	}
	return func(output []byte, cell datapath.BenchCell, flow uint32) error {
		slot := cookie.Slot(cookie.FlowHash(key, client(flow), servicePort), model.DefaultSlots)
		return checkServer(output, cell, flow, serverAddress(owners[slot]))
	}
}

func checkServer(output []byte, cell datapath.BenchCell, flow uint32, want netip.Addr) error {
	got, err := checkEncapsulated(output, cell, flow)
	if err == nil && got != want {
		err = fmt.Errorf("the packet goes to %s, want %s", got, want)
	}
	return err
}
