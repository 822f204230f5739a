// Package server loads, fills, attaches and reads the programs of a server (bpf/server.bpf.c).
package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/linux/portranges"
	"github.com/ballast-lb/ballast/internal/linux/verdict"
	"github.com/ballast-lb/ballast/internal/plan"
)

//go:generate go tool bpf2go -target bpfel -type agent_verdict -type served -type served_key -type stop -type interface -type agent_traffic -type tunnel_limit -type tunnel_slot -type tunnel_note -type turn -type probe_fate server ../../../bpf/server.bpf.c

// Layout names the shape of the pinned maps: see that of lb.
const Layout = "agent-v13"

// keptMaps hold what connections need for life. A process with another layout goes on with those of the one before, where they have
// the same shape; else connections lose their marks.
var keptMaps = []string{"hold_backs", "exceptions", "columns", "translated", "translated_handshakes", "generation", "last_turn"}

// rowRest is how long a row that packets no longer find is left alone: one may still be reading it.
const rowRest = time.Second

var errTooMany = errors.New("publish a service: too many changes at once: try again in a second")

// Server is the server role's programs with their maps. Its methods are not safe for concurrent use, but for Counters, SetLoad, Load, Live, Limit and SweepTranslated.
type Server struct {
	objects objects
	pins    pin.Instance
	host    *attach.Host
	live    *ebpf.Program // counts living connections; nil: none does
	rows    map[plan.VIPKey]servedRow
	free    []freeRow
	ranges  *portranges.Lists
	// rangesMoved is when a list of ranges was given up last.
	rangesMoved time.Time
	names       []string
	sweeping    sweeping
	// withoutXDP are devices that were attached to at tc alone.
	withoutXDP map[int]bool
}

// objects are what every agent has.
type objects struct {
	serverMaps
	serverVariables
	ServerXdp     *ebpf.Program `ebpf:"server_xdp"`
	ServerIngress *ebpf.Program `ebpf:"server_ingress"`
	ServerEgress  *ebpf.Program `ebpf:"server_egress"`
	CountEchoes   *ebpf.Program `ebpf:"count_echoes"`
	Sweep         *ebpf.Program `ebpf:"sweep_translated"`
}

type servedRow struct {
	index uint32
	row   plan.AgentRow
}

type freeRow struct {
	index uint32
	since time.Time
}

// Open loads the programs. With dir, a directory in a BPF file system, the maps are pinned there and those of an
// earlier process are taken over, with the room that they have.
func Open(dir string, limits Limits) (*Server, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift the limit on locked memory: %w", err)
	}
	spec, err := loadServer()
	if err != nil {
		return nil, fmt.Errorf("read the server's programs: %w", err)
	}
	server := &Server{rows: map[plan.VIPKey]servedRow{}, withoutXDP: map[int]bool{}}
	options := ebpf.CollectionOptions{}
	if dir != "" {
		server.pins = pin.Instance{Dir: dir, Layout: Layout}
		if options.Maps.PinPath, err = server.pins.Maps(); err != nil {
			return nil, err
		}
		for name, m := range spec.Maps {
			if !pin.IsSection(name) {
				m.Pinning = ebpf.PinByName
			}
		}
	}
	if err := server.limitTo(spec, limits); err != nil {
		return nil, err
	}
	if dir != "" {
		if err := server.pins.Keep(spec, keptMaps); err != nil {
			return nil, err
		}
	}
	if server.names, err = verdict.Names(spec.Types, "agent_verdict"); err != nil {
		return nil, err
	}
	if server.host, err = attach.OpenHost(dir); err != nil {
		return nil, err
	}
	if err := spec.LoadAndAssign(&server.objects, &options); err != nil {
		return nil, errors.Join(fmt.Errorf("load the server's programs: %w", err), server.host.Close())
	}
	forget := replace[translatedFlow, uint32](server.objects.Probes, nil) // an earlier process's probes
	if err = errors.Join(server.FollowClock(), forget, server.readRows()); err == nil && len(server.rows) > 0 {
		err = server.advance() // the earlier process may have ended between publishing and this
	}
	if err != nil {
		server.Close()
		return nil, err
	}
	return server, nil
}

// Served returns the rows that are published, by destination.
func (s *Server) Served() map[plan.VIPKey]plan.AgentRow {
	rows := make(map[plan.VIPKey]plan.AgentRow, len(s.rows))
	for key, have := range s.rows {
		rows[key] = have.row
	}
	return rows
}

// Serve makes the maps hold these services. A packet sees each of them as it was or as it is to be. Services that are
// gone stay, retired, for their connections.
func (s *Server) Serve(served map[plan.VIPKey]plan.AgentRow) (changes int, err error) {
	want := make(map[plan.VIPKey]plan.AgentRow, len(served))
	for key, have := range s.rows {
		want[key] = have.row.Retired()
		if row, covered := rangeOf(served, key); covered {
			want[key] = row
		}
	}
	for key, row := range served {
		if have, ok := s.rows[key]; ok && row.Flags == 0 && have.row.Flags != 0 {
			continue // no longer by cookie
		}
		want[key] = row
	}
	if err := errors.Join(s.beginAcceptances(want), s.lookForPredecessors(want)); err != nil {
		return 0, err
	}
	if err := s.dropRanges(served, want); err != nil {
		return 0, err
	}
	for _, still := range []bool{false, true} { // what is served comes before what was, where ranges have ports in common
		for key, row := range want {
			have, ok := s.rows[key]
			if _, wanted := served[key]; err != nil || wanted != still || ok && have.row == row {
				continue
			}
			if err = s.publish(key, row); err == nil {
				changes++
			}
		}
	}
	if changes > 0 {
		err = errors.Join(err, s.turn(served), s.advance())
	}
	return changes, err
}

// lookForPredecessors lets programs look for rows with predecessors where there are any.
func (s *Server) lookForPredecessors(want map[plan.VIPKey]plan.AgentRow) error {
	var used uint32
	for _, row := range want {
		if row.PredecessorForward != 0 {
			used = 1
		}
	}
	if err := s.objects.PredecessorsUsed.Set(used); err != nil {
		return fmt.Errorf("say whether services have predecessors: %w", err)
	}
	return nil
}

// publish writes a new row, then lets packets find it.
func (s *Server) publish(key plan.VIPKey, row plan.AgentRow) error {
	index := uint32(0)
	if row != (plan.AgentRow{}) {
		if len(s.free) == 0 || time.Since(s.free[0].since) < rowRest {
			return errTooMany
		}
		index = s.free[0].index
		if err := s.objects.ServedServices.Put(index, row); err != nil {
			return fmt.Errorf("write row %d of the served services: %w", index, err)
		}
		s.free = s.free[1:]
	}
	var err error
	if key.Last != 0 {
		err = s.ranges.Set(key, index)
	} else {
		err = s.objects.ServedRows.Put(key.PortKey, index)
	}
	if err != nil {
		return fmt.Errorf("publish a served service: %w", err)
	}
	if old, ok := s.rows[key]; ok && old.index != 0 {
		s.free = append(s.free, freeRow{old.index, time.Now()})
	}
	s.rows[key] = servedRow{index, row}
	return nil
}

// advance makes sockets ask for their cookie again.
func (s *Server) advance() error {
	var generation uint32
	if err := s.objects.Generation.Lookup(uint32(0), &generation); err != nil {
		return fmt.Errorf("read the generation of the services: %w", err)
	}
	return s.objects.Generation.Put(uint32(0), generation+1)
}

// SetStops makes the map of next hops to other servers hold exactly these.
func (s *Server) SetStops(stops map[netip.Addr]plan.Path) error {
	want := make(map[[16]byte]serverStop, len(stops))
	for address, stop := range stops {
		want[plan.WireAddress(address)] = serverStop{
			Ifindex: stop.Ifindex, DestinationMac: stop.DestinationMAC, SourceMac: stop.SourceMAC,
			Vlan: stop.VLAN<<8 | stop.VLAN>>8,
		}
	}
	return replace(s.objects.StopHops, want)
}

// Stops returns the stops in the map.
func (s *Server) Stops() (map[netip.Addr]plan.Path, error) {
	stops := map[netip.Addr]plan.Path{}
	var key [16]byte
	var stop serverStop
	entries := s.objects.StopHops.Iterate()
	for entries.Next(&key, &stop) {
		stops[plan.AddressOf(key)] = plan.Path{
			Ifindex: stop.Ifindex, DestinationMAC: stop.DestinationMac, SourceMAC: stop.SourceMac, VLAN: stop.Vlan<<8 | stop.Vlan>>8,
		}
	}
	return stops, entries.Err()
}

// SetOwnAddresses makes the map of this host's addresses hold exactly these.
func (s *Server) SetOwnAddresses(addresses []netip.Addr) error {
	want := make(map[[16]byte]uint32, len(addresses))
	for _, address := range addresses {
		want[plan.WireAddress(address)] = 1
	}
	return replace(s.objects.OwnAddresses, want)
}

// replace makes a hash map hold exactly want, without ever missing an entry that stays.
func replace[K, V comparable](m *ebpf.Map, want map[K]V) error {
	var gone []K
	var key K
	var value V
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		if _, ok := want[key]; !ok {
			gone = append(gone, key)
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("read map %s: %w", m, err)
	}
	for key, value := range want {
		if err := m.Put(key, value); err != nil {
			return fmt.Errorf("write map %s: %w", m, err)
		}
	}
	for _, key := range gone {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete from map %s: %w", m, err)
		}
	}
	return nil
}

// Attach runs the programs on a device of the calling thread's network namespace and returns the mode that XDP got.
// Links that an earlier process pinned are switched over without a gap. With XDPNone whatever else has the device's XDP hook keeps it.
// After an error nothing is on the device that was not there before.
func (s *Server) Attach(device *net.Interface, mode attach.XDPMode) (got attach.XDPMode, err error) {
	var undo []func() error
	defer func() {
		if err != nil {
			for _, step := range undo {
				err = errors.Join(err, step())
			}
		}
	}()
	value := serverInterface{}
	if errors.Is(s.objects.Interfaces.Lookup(uint32(device.Index), &value), ebpf.ErrKeyNotExist) {
		undo = append(undo, func() error { return s.objects.Interfaces.Delete(uint32(device.Index)) })
	}
	value = serverInterface{}
	copy(value.Mac[:], device.HardwareAddr)
	if err := s.objects.Interfaces.Put(uint32(device.Index), value); err != nil {
		undo = nil
		return "", fmt.Errorf("look up the address of %s: %w", device.Name, err)
	}
	for _, place := range s.places(device.Index) {
		s.pins.Ask(place.Hook.Name, device.Index)
		there, err := place.There()
		if err != nil {
			return "", err
		}
		if !there {
			undo = append(undo, place.Undo)
		}
		if err := place.Attach(); err != nil {
			return "", err
		}
	}
	if err := s.begin(); err != nil {
		return "", err
	}
	if mode == attach.XDPNone {
		s.withoutXDP[device.Index] = true
		return mode, nil
	}
	s.pins.Ask(pin.HookXDP, device.Index)
	there, err := s.pins.There(pin.HookXDP, device.Index)
	if err != nil {
		return "", err
	}
	if !there {
		undo = append(undo, func() error { return s.pins.Undo(pin.HookXDP, device.Index) })
	}
	if got, err = s.host.Behind(&s.pins, s.objects.ServerXdp, device, mode); err == nil {
		delete(s.withoutXDP, device.Index)
	}
	return got, err
}

// places are where the programs run. Restore before mark: what is marked comes back only later.
func (s *Server) places(ifindex int) []*attach.TC {
	return []*attach.TC{
		{Program: s.objects.ServerIngress, Hook: attach.Ingress, Ifindex: ifindex, Dir: s.pins.Dir, Pins: &s.pins},
		{Program: s.objects.ServerEgress, Hook: attach.Egress, Ifindex: ifindex, Dir: s.pins.Dir, Pins: &s.pins},
	}
}

// OpenExit gives a device that packets are only handed on by the pass program.
func (s *Server) OpenExit(device *net.Interface) error { return link.OpenExit(&s.pins, device) }

// HasLink reports whether this instance has an XDP link on a device, of this process or an earlier one.
func (s *Server) HasLink(ifindex int) (bool, error) { return s.pins.There(pin.HookXDP, ifindex) }

// Forget drops what is kept for a device that is gone.
func (s *Server) Forget(ifindex int) error {
	delete(s.withoutXDP, ifindex)
	if err := s.objects.Interfaces.Delete(uint32(ifindex)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forget device %d: %w", ifindex, err)
	}
	return errors.Join(attach.Leave(&s.pins, ifindex), s.pins.Forget(ifindex))
}

// Attached says that every device has the programs: what only earlier ones needed goes.
func (s *Server) Attached() error { return attach.DropOthers(&s.pins) }

// Runs is nil if a device that was attached has all programs still that Attach was asked for; else it says what is amiss. Attach mends it.
func (s *Server) Runs(ifindex int) error {
	for _, place := range s.places(ifindex) {
		if err := place.Runs(); err != nil {
			return err
		}
	}
	if s.withoutXDP[ifindex] {
		return nil
	}
	if err := s.pins.Adopt(pin.HookXDP, ifindex); err != nil { // a load balancer may have given it back
		return err
	}
	err := s.pins.Runs(pin.HookXDP, ifindex, s.objects.ServerXdp)
	if err != nil && s.host.RunsBehind(&s.pins, ifindex, s.objects.ServerXdp) == nil {
		return nil
	}
	return err
}

// Ahead says which programs of others see a device's packets before ours, one line each.
func (s *Server) Ahead(ifindex int) (lines []string, err error) {
	if !s.withoutXDP[ifindex] {
		lines = attach.XDPBelow(ifindex)
	}
	for _, place := range s.places(ifindex) {
		ahead, failed := place.Ahead()
		lines, err = append(lines, ahead...), errors.Join(err, failed)
	}
	return lines, err
}

// Repin pins again what somebody has removed the pins of, and reports whether there was any: without, all of it ends with the process.
func (s *Server) Repin() (missed bool, err error) {
	missed, err = s.pins.Repin(&s.objects.serverMaps)
	return missed, errors.Join(err, s.host.Repin())
}

// Counters returns packets and bytes by verdict name.
func (s *Server) Counters() (map[string]verdict.Traffic, error) {
	return s.CountersOf(s.names[1:serverAgentVerdictAGENT_VERDICTS]...)
}

// CountersOf is Counters of some verdicts: each is a system call.
func (s *Server) CountersOf(names ...string) (map[string]verdict.Traffic, error) {
	out := make(map[string]verdict.Traffic, len(names))
	for _, name := range names {
		var perCPU []serverAgentTraffic
		if err := s.objects.AgentCounters.Lookup(uint32(slices.Index(s.names, name)), &perCPU); err != nil {
			return nil, fmt.Errorf("read counter %s: %w", name, err)
		}
		var sum verdict.Traffic
		for _, t := range perCPU {
			sum.Packets += t.Packets
			sum.Bytes += t.Bytes
		}
		out[name] = sum
	}
	return out, nil
}

// Programs returns the XDP, the ingress and the egress program, for test runs.
func (s *Server) Programs() (xdp, ingress, egress *ebpf.Program) {
	return s.objects.ServerXdp, s.objects.ServerIngress, s.objects.ServerEgress
}

// Close lets go of everything. What is pinned or attached stays.
func (s *Server) Close() error {
	o := &s.objects
	return errors.Join(s.pins.Release(), s.host.Close(), s.live.Close(), o.ServerXdp.Close(), o.ServerIngress.Close(), o.ServerEgress.Close(), o.CountEchoes.Close(), o.Sweep.Close(), o.serverMaps.Close())
}

// Object is the compiled BPF object (ELF) that is loaded.
func Object() []byte { return _ServerBytes }
