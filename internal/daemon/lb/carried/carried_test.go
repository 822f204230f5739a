package carried

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func TestVIPsWhosePacketsLeaveByADeviceThatDropsThemAreWithdrawn(t *testing.T) {
	const good, bad = 2, 3
	service := func(name, vip string, devices ...uint32) (s model.Service, paths map[netip.Addr]plan.Path) {
		s, paths = model.Service{Name: name, VIP: netip.MustParseAddr(vip), Protocol: model.ProtocolTCP}, map[netip.Addr]plan.Path{}
		for i, device := range devices {
			server := model.Server{Name: name, Address: netip.MustParseAddr(fmt.Sprintf("%s%d", vip, i)), ID: uint16(i + 1), Weight: 1}
			s.Servers, paths[server.Address] = append(s.Servers, server), plan.Path{Ifindex: device}
		}
		return s, paths
	}
	j := Judge{Stop: func() string { return "" }, Refuses: func(ifindex uint32) string {
		if ifindex == bad {
			return "it drops frames"
		}
		return ""
	}}
	for _, test := range []struct {
		name      string
		devices   []uint32
		unhealthy fleet.Unhealthy
		always    bool
		other     bool // a service of the VIP that loses nothing
		want      string
	}{
		{"nothing is lost", []uint32{good, good}, fleet.Unhealthy{}, false, false, ""},
		{"some is lost", []uint32{good, bad}, fleet.Unhealthy{}, false, false, "it drops frames"},
		{"of one service", []uint32{good, bad}, fleet.Unhealthy{}, false, true, "it drops frames"},
		{"nothing is sent there", []uint32{good, bad}, fleet.Unhealthy{Down: []uint16{2}}, false, false, ""},
		{"all_down keeps them", []uint32{bad, bad}, fleet.Unhealthy{Kept: []uint16{1, 2}}, false, false, "it drops frames"},
		{"the user wants it so", []uint32{bad}, fleet.Unhealthy{}, true, false, ""},
	} {
		web, paths := service("web", "198.51.100.1", test.devices...)
		running := model.Fleet{Services: []model.Service{web}}
		if test.other {
			dns, more := service("dns", "198.51.100.2", good)
			dns.VIP = web.VIP
			running.Services = append(running.Services, dns)
			maps.Copy(paths, more)
		}
		s := &dataplane.Snapshot{Followed: true, Paths: paths, State: &desired.State{Self: "lb1",
			Desired: fleet.Desired{Running: running}, Unhealthy: map[string]fleet.Unhealthy{"web": test.unhealthy}}}
		w := j.Wanted(s, test.always, 0, model.StateActive)
		if why := w.VIPs[netip.PrefixFrom(web.VIP, 32)]; why != test.want {
			t.Errorf("%s: %q, not %q", test.name, why, test.want)
		}
	}
}

// Promise: A load balancer with BGP withdraws a VIP at once when it can reach no server of its services.
func TestAVIPIsWantedWhereOneOfItsServicesHasAServerToSendTo(t *testing.T) {
	servers := []model.Server{{Name: "s1", Address: netip.MustParseAddr("10.0.0.1"), ID: 1}, {Name: "s2", Address: netip.MustParseAddr("10.0.0.2"), ID: 2}}
	vip := netip.MustParseAddr("198.51.100.10")
	snapshot := func() *dataplane.Snapshot {
		running := model.Fleet{Services: []model.Service{{Name: "web", VIP: vip, Protocol: model.ProtocolTCP, Servers: slices.Clone(servers)}}}
		return &dataplane.Snapshot{Followed: true, State: &desired.State{Desired: fleet.Desired{Running: running}, Self: "lb1"},
			Paths: map[netip.Addr]plan.Path{servers[0].Address: {}, servers[1].Address: {}}, Pathless: map[netip.Addr]string{}}
	}
	stop := ""
	j := Judge{Stop: func() string { return stop }}
	for want, edit := range map[string]func(s *dataplane.Snapshot){
		"":                                 func(*dataplane.Snapshot) {},
		"service web has no server":        func(s *dataplane.Snapshot) { s.Running.Services[0].Servers = nil },
		"no way is known to any server of": func(s *dataplane.Snapshot) { s.Paths = nil },
		"every server of service web that can be": func(s *dataplane.Snapshot) {
			s.Unhealthy = map[string]fleet.Unhealthy{"web": {Down: []uint16{1, 2}}}
		},
	} {
		s := snapshot()
		edit(s)
		w := j.Wanted(s, false, 0, model.StateActive)
		if why, known := w.VIPs[netip.PrefixFrom(vip, 32)]; !known || !strings.HasPrefix(why, want) || (why == "") != (want == "") || w.Stop != "" {
			t.Errorf("%+v, not %q", w, want)
		}
		if w := j.Wanted(s, true, 0, model.StateActive); w.VIPs[netip.PrefixFrom(vip, 32)] != "" {
			t.Errorf("always: %+v", w)
		}
		s.Running.Services = append(s.Running.Services, model.Service{Name: "dns", VIP: vip, Protocol: model.ProtocolUDP, Servers: []model.Server{{Name: "s3", Address: netip.MustParseAddr("10.0.0.3"), ID: 3}}})
		if s.Paths != nil {
			s.Paths[netip.MustParseAddr("10.0.0.3")] = plan.Path{}
			if w := j.Wanted(s, false, 0, model.StateActive); w.VIPs[netip.PrefixFrom(vip, 32)] != "" {
				t.Errorf("with another service: %+v", w)
			}
		}
	}
	successor := netip.MustParseAddr("10.0.0.9")
	for share, want := range map[uint16]string{0: "", 1: "every server of service web that can be reached is unhealthy"} { // what no connection begins at
		s := snapshot()
		s.Unhealthy = map[string]fleet.Unhealthy{"web": {Down: []uint16{1, 2}}}
		s.Running.Services[0].Predecessor = model.Predecessor{Addresses: []netip.Addr{successor}, Share: model.ShareOf(share)}
		s.Paths[successor] = plan.Path{OnLink: true}
		if w := j.Wanted(s, false, 0, model.StateActive); w.VIPs[netip.PrefixFrom(vip, 32)] != want {
			t.Errorf("share %d, and the predecessor is there: %+v", share, w)
		}
	}
	for how, want := range map[model.VIPAnnouncement]string{model.VIPForce: "", model.VIPOff: "announce is off (service dns)"} {
		s := snapshot()
		s.Running.Services = append(s.Running.Services, model.Service{Name: "dns", VIP: vip, Protocol: model.ProtocolUDP, Announce: how})
		for _, always := range []bool{false, true} {
			if w := j.Wanted(s, always, 0, model.StateActive); w.VIPs[netip.PrefixFrom(vip, 32)] != want {
				t.Errorf("announce %v, always %v: %+v", how, always, w)
			}
		}
	}
	if w := j.Wanted(snapshot(), false, 0, model.StateDraining); w.Stop != "this node is draining" {
		t.Errorf("%+v", w)
	}
	if stop = "eth0 is down"; j.Wanted(snapshot(), true, 0, model.StateActive).Stop != stop {
		t.Error("announced without a program")
	}
	stop = ""
	replicated := snapshot()
	replicated.Running.Services[0].Affinity = model.AffinityReplicated
	j.Ring = func() string { return "no ring" }
	for _, s := range []*dataplane.Snapshot{replicated, snapshot()} {
		want := ""
		if s == replicated {
			want = "no ring"
		}
		if w := j.Wanted(s, false, 0, model.StateActive); w.VIPs[netip.PrefixFrom(vip, 32)] != want {
			t.Errorf("off the ring: %+v", w)
		}
	}
	functions := snapshot()
	functions.Running.Services[0].Protocol = model.ProtocolAny
	functions.Running.Services[0].Destinations = model.Prefix{Prefix: netip.MustParsePrefix("0.0.0.0/0")}
	if w := j.Wanted(functions, false, 0, model.StateActive); len(w.VIPs) != 0 {
		t.Errorf("network functions: %+v", w)
	}
}
