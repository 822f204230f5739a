package bgp

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func TestPasswordsThatOthersCanReadAreRefusedAndNeverShown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	for want, c := range map[string]struct {
		content string
		mode    os.FileMode
	}{
		"others can read it (mode 0640): chmod 600": {"secret\n", 0o640},
		"its first line has 0 bytes":                {"\nsecret", 0o600},
		"its first line has 81 bytes":               {strings.Repeat("s", 81), 0o600},
	} {
		os.Remove(path)
		if err := os.WriteFile(path, []byte(c.content), c.mode); err != nil {
			t.Fatal(err)
		}
		if password, err := readPassword(path); err == nil || password != "" || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sss") {
			t.Errorf("%q, %v, not %s", password, err, want)
		}
	}
	os.Remove(path)
	if _, err := readPassword(path); err == nil {
		t.Error("a file that is missing is taken")
	}
	os.WriteFile(path, []byte("two words\nand more"), 0o600)
	if password, err := readPassword(path); err != nil || password != "two words" {
		t.Errorf("%q, %v", password, err)
	}
}

func TestIPv4RoutesGoByIPv6SessionsOnlyWhereTheRouterTakesTheirNextHops(t *testing.T) {
	both := []bgp.Family{bgp.RF_IPv6_UC, bgp.RF_IPv4_UC}
	mp4, mp6 := bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC), bgp.NewCapMultiProtocol(bgp.RF_IPv6_UC)
	hops := bgp.NewCapExtendedNexthop([]*bgp.CapExtendedNexthopTuple{bgp.NewCapExtendedNexthopTuple(bgp.RF_IPv4_UC, bgp.AFI_IP6)})
	for _, c := range []struct {
		offered []bgp.Family
		theirs  []bgp.ParameterCapabilityInterface
		ipv6    bool
		want    []string
	}{
		{both, []bgp.ParameterCapabilityInterface{mp4, mp6, hops}, true, []string{"ipv4", "ipv6"}},
		{both, []bgp.ParameterCapabilityInterface{mp4, mp6}, true, []string{"ipv6"}},
		{both, []bgp.ParameterCapabilityInterface{mp6, hops}, true, []string{"ipv6"}},
		{both, []bgp.ParameterCapabilityInterface{mp4}, true, nil},
		{both, nil, true, nil},
		{both[1:], nil, false, []string{"ipv4"}},
		{both[1:], []bgp.ParameterCapabilityInterface{mp6}, false, nil},
		{both[1:], []bgp.ParameterCapabilityInterface{mp4}, false, []string{"ipv4"}},
	} {
		if have := familyNames(agreed(c.offered, c.theirs, c.ipv6)); !slices.Equal(have, c.want) {
			t.Errorf("%+v: %v", c, have)
		}
	}
}

func TestWhatGoBGPSaysOfANeighbourIsKeptAndErrorsAreLogged(t *testing.T) {
	var out bytes.Buffer
	n := newNotes(slog.New(slog.NewTextHandler(&out, nil)))
	peer := slog.New(n).With("Topic", "Peer", "Key", "192.0.2.1")
	router := netip.MustParseAddr("192.0.2.1")
	peer.Debug("failed to connect", "Error", "connection refused")
	if last := n.last(router); last != "cannot connect: connection refused" {
		t.Errorf("%q", last)
	}
	peer.Info("sent notification", "Code", 2, "Subcode", 2)
	peer.Info("something else")
	if last := n.last(router); last != "refused: it is in another AS than configured (2/2)" {
		t.Errorf("%q", last)
	}
	peer.Info("received notification", "Code", 9, "Subcode", 1)
	if last := n.last(router); last != "it says: notification 9/1" {
		t.Errorf("%q", last)
	}
	if out.Len() > 0 {
		t.Errorf("the log is %s", out.String())
	}
	if peer.Error("broken"); !strings.Contains(out.String(), "BGP: broken") || !strings.Contains(out.String(), "192.0.2.1") {
		t.Errorf("the log is %s", out.String())
	}
	if n.forget(router); n.last(router) != "" {
		t.Error("not forgotten")
	}
}

func TestASessionThatHasJustBeenBegunIsNoProblemUntilItFailsOrHasNoAnswer(t *testing.T) {
	now := time.Unix(1700000000, 0)
	for name, c := range map[string]struct {
		neighbor api.BGPNeighbor
		says     string
	}{
		"just begun":                {api.BGPNeighbor{Why: noAnswer, Since: now.Add(-firstAttempt + time.Second)}, ""},
		"no answer":                 {api.BGPNeighbor{Why: noAnswer, Since: now.Add(-firstAttempt)}, noAnswer},
		"just begun, and refused":   {api.BGPNeighbor{Why: "connection refused", Since: now}, "connection refused"},
		"up":                        {api.BGPNeighbor{Up: true, Since: now.Add(-time.Hour)}, ""},
		"down after it has been up": {api.BGPNeighbor{Why: "hold timer expired", Since: now}, "hold timer expired"},
	} {
		said := sessionProblem(&c.neighbor, now)
		if (said == "") != (c.says == "") || !strings.Contains(said, c.says) {
			t.Errorf("%s: %q, want %q", name, said, c.says)
		}
	}
}

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
	a := New(Options{Stop: func() string { return "" }, Refuses: func(ifindex uint32) string {
		if ifindex == bad {
			return "it drops frames"
		}
		return ""
	}})
	for _, test := range []struct {
		name      string
		devices   []uint32
		unhealthy fleet.Unhealthy
		announce  model.Announce
		other     bool // a service of the VIP that loses nothing
		want      string
	}{
		{"nothing is lost", []uint32{good, good}, fleet.Unhealthy{}, 0, false, ""},
		{"some is lost", []uint32{good, bad}, fleet.Unhealthy{}, 0, false, "it drops frames"},
		{"of one service", []uint32{good, bad}, fleet.Unhealthy{}, 0, true, "it drops frames"},
		{"nothing is sent there", []uint32{good, bad}, fleet.Unhealthy{Down: []uint16{2}}, 0, false, ""},
		{"all_down keeps them", []uint32{bad, bad}, fleet.Unhealthy{Kept: []uint16{1, 2}}, 0, false, "it drops frames"},
		{"the user wants it so", []uint32{bad}, fleet.Unhealthy{}, model.AnnounceAlways, false, ""},
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
		w := a.wanted(s, &model.BGP{Announce: test.announce}, model.StateActive)
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
	a := New(Options{Stop: func() string { return stop }})
	for want, edit := range map[string]func(s *dataplane.Snapshot, conf *model.BGP){
		"":                                 func(*dataplane.Snapshot, *model.BGP) {},
		"service web has no server":        func(s *dataplane.Snapshot, _ *model.BGP) { s.Running.Services[0].Servers = nil },
		"no way is known to any server of": func(s *dataplane.Snapshot, _ *model.BGP) { s.Paths = nil },
		"every server of service web that can be": func(s *dataplane.Snapshot, _ *model.BGP) {
			s.Unhealthy = map[string]fleet.Unhealthy{"web": {Down: []uint16{1, 2}}}
		},
	} {
		s, conf := snapshot(), model.BGP{}
		edit(s, &conf)
		w := a.wanted(s, &conf, model.StateActive)
		if why, known := w.VIPs[netip.PrefixFrom(vip, 32)]; !known || !strings.HasPrefix(why, want) || (why == "") != (want == "") || w.Stop != "" {
			t.Errorf("%+v, not %q", w, want)
		}
		conf.Announce = model.AnnounceAlways
		if w := a.wanted(s, &conf, model.StateActive); w.VIPs[netip.PrefixFrom(vip, 32)] != "" {
			t.Errorf("always: %+v", w)
		}
		s.Running.Services = append(s.Running.Services, model.Service{Name: "dns", VIP: vip, Protocol: model.ProtocolUDP, Servers: []model.Server{{Name: "s3", Address: netip.MustParseAddr("10.0.0.3"), ID: 3}}})
		if s.Paths != nil {
			s.Paths[netip.MustParseAddr("10.0.0.3")] = plan.Path{}
			if w := a.wanted(s, &model.BGP{}, model.StateActive); w.VIPs[netip.PrefixFrom(vip, 32)] != "" {
				t.Errorf("with another service: %+v", w)
			}
		}
	}
	if w := a.wanted(snapshot(), &model.BGP{}, model.StateDraining); w.Stop != "this node is draining" {
		t.Errorf("%+v", w)
	}
	if stop = "eth0 is down"; a.wanted(snapshot(), &model.BGP{Announce: model.AnnounceAlways}, model.StateActive).Stop != stop {
		t.Error("announced without a program")
	}
	stop = ""
	replicated := snapshot()
	replicated.Running.Services[0].Affinity = model.AffinityReplicated
	a.o.Ring = func() string { return "no ring" }
	for _, s := range []*dataplane.Snapshot{replicated, snapshot()} {
		want := ""
		if s == replicated {
			want = "no ring"
		}
		if w := a.wanted(s, &model.BGP{}, model.StateActive); w.VIPs[netip.PrefixFrom(vip, 32)] != want {
			t.Errorf("off the ring: %+v", w)
		}
	}
	functions := snapshot()
	functions.Running.Services[0].Protocol = model.ProtocolAny
	functions.Running.Services[0].Destinations = model.Prefix{Prefix: netip.MustParsePrefix("0.0.0.0/0")}
	if w := a.wanted(functions, &model.BGP{}, model.StateActive); len(w.VIPs) != 0 {
		t.Errorf("network functions: %+v", w)
	}
}
