package server_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/safchain/ethtool"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// Programs at tc may see a packet from its Ethernet or from its IP header on. Neither the MAC of the device nor the client's address may
// make them take one for the other: these MACs begin like an IP header, and these addresses have an EtherType where the frame has one.
func TestPacketsAreFoundWhateverTheyLookLike(t *testing.T) {
	for _, mode := range []attach.XDPMode{attach.XDPNative, attach.XDPGeneric} {
		for _, mac := range []string{"02:00:00:00:00:01", "46:00:00:3c:00:00", "60:00:00:00:00:28"} {
			t.Run(fmt.Sprintf("%s mode, device %s", mode, mac), func(t *testing.T) {
				address, err := net.ParseMAC(mac)
				progtest.Check(t, err)
				findPackets(t, newRig(t, rigOptions{mode: mode, mac: address}))
			})
		}
	}
}

func findPackets(t *testing.T, r *rig) {
	for source, gateway := range map[string]string{"8.0.1.2/32": "10.9.0.1", "2001:db8:86dd::2/128": "fd09::1"} {
		progtest.Check(t, r.client.AddAddress("lo", netip.MustParsePrefix(source)))
		progtest.Check(t, r.server.Route(netip.MustParsePrefix(source), 0, netspace.NextHop{Gateway: netip.MustParseAddr(gateway), Interface: "eth0"}))
	}
	progtest.Check(t, r.server.Do(func() error { // uploads arrive as super-packets
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		return tool.Change("eth0", map[string]bool{"rx-gro": true})
	}))
	r.listen(false)
	before, w := r.rejects(), r.watch()
	for _, source := range []string{"10.9.0.1", "8.0.1.2", "fd09::1", "2001:db8:86dd::2"} {
		vip := r.vips[0]
		if netip.MustParseAddr(source).Is6() {
			vip = r.vips[1]
		}
		restored := r.count("ingress_restored")
		conn := r.dialBy(&net.TCPAddr{IP: net.ParseIP(source)}, vip)
		upload := bytes.Repeat(binary.BigEndian.AppendUint64(nil, 0), 50_000) // requests for nothing
		if _, err := conn.Write(upload); err != nil {
			t.Errorf("from %s: %v", source, err)
		}
		if err := fetch(conn, 300_000); err != nil {
			t.Errorf("from %s: %v", source, err)
		}
		conn.Close()
		if n := r.count("ingress_restored") - restored; n < 10 {
			t.Errorf("from %s: %d packets restored", source, n)
		}
	}
	r.verify(w, before)
	if n := r.count("ingress_bad_cookie"); n != 0 {
		t.Errorf("%d cookies are bad", n)
	}
}

// Load balancer and agent in generic mode, real TCP from end to end.
//
// Promise: Generic mode forwards as native mode does, at a higher cost.
func TestTunnelsWorkInGenericMode(t *testing.T) {
	r := newRig(t, rigOptions{lossy: true, mode: attach.XDPGeneric}) // it loses nothing unless it is told to
	lb, tables := r.balance()
	r.listen(false)
	before, w := r.rejects(), r.watch()
	for _, forward := range []model.Forward{model.ForwardIPIP, model.ForwardGUE} {
		for _, server := range []string{"10.8.0.2", "fd08::2"} {
			changes, err := tables.Update(r.want(netip.MustParseAddr(server), forward))
			progtest.Check(t, err)
			progtest.Check(t, lb.Apply(changes))
			taken, restored := r.count("decapsulated"), r.count("ingress_restored")
			var uploads sync.WaitGroup
			for _, vip := range r.vips {
				conn := r.dial(vip)
				uploads.Go(func() {
					defer conn.Close()
					conn.Write(bytes.Repeat(binary.BigEndian.AppendUint64(nil, 0), 10_000)) // requests for nothing
					if err := fetch(conn, 100_000); err != nil {
						t.Errorf("%s to %s: %v", forward, server, err)
					}
				})
			}
			uploads.Wait()
			if n := r.count("decapsulated") - taken; n < 20 {
				t.Errorf("%s to %s: %d packets came by tunnel", forward, server, n)
			}
			if n := r.count("ingress_restored") - restored; n < 10 {
				t.Errorf("%s to %s: %d packets restored", forward, server, n)
			}
		}
	}
	r.verify(w, before)
	if n := r.count("ingress_bad_cookie"); n != 0 {
		t.Errorf("%d cookies are bad", n)
	}
}

// balance makes a load balancer of the router.
func (r *rig) balance() (*lb.LB, *plan.Tables) {
	r.t.Helper()
	progtest.Check(r.t, r.agent.SetOwnAddresses([]netip.Addr{netip.MustParseAddr("10.8.0.2"), netip.MustParseAddr("fd08::2")}))
	limits := plan.Limits{Services: 8, Servers: 16, ServerIDs: 1 << 16, Slots: 1 << 16, Rounds: 1 << 10}
	lb, err := lb.Open(r.pins(), limits)
	progtest.Check(r.t, err)
	r.t.Cleanup(func() { lb.Close() })
	for _, name := range []string{"eth0", "eth1"} {
		progtest.Check(r.t, r.router.Do(func() error {
			device, err := net.InterfaceByName(name)
			if err == nil {
				_, err = lb.Attach(device, cmp.Or(r.mode, attach.XDPAuto))
			}
			return err
		}))
	}
	progtest.Check(r.t, r.client.AttachXDP("eth0", r.wires[0].PassFD())) // or veth does not take what is sent back
	return lb, plan.NewTables(limits)
}

// want is what a load balancer is told that has the router's place.
func (r *rig) want(server netip.Addr, forward model.Forward) *plan.Want {
	want := &plan.Want{Keys: r.fleet.Keys, Paths: map[netip.Addr]plan.Path{}}
	r.await("the neighbour "+server.String(), func() bool {
		return r.router.Do(func() error {
			hop, err := netdev.NewResolver().Lookup(server)
			want.Paths[server] = plan.Path{Ifindex: uint32(hop.Ifindex), VLAN: hop.VLAN, Source: hop.Source, SourceMAC: hop.SourceMAC,
				DestinationMAC: hop.Destination, MTU: hop.MTU}
			return err
		}) == nil
	})
	for i := range r.fleet.Services {
		s := model.NewService()
		s.Name, s.VIP, s.Ports, s.CookieBits = r.fleet.Services[i].Name, r.vips[i], []uint16{servicePort}, 14
		s.Servers = []model.Server{{Name: "s", ID: serverID, Address: server, Weight: 1}}
		s.ApplyDefaults()
		s.Forward, s.Session, s.SYNProxy = forward, r.fleet.Services[i].Session, r.fleet.Services[i].SYNProxy
		want.Services = append(want.Services, plan.Service{Service: s})
	}
	return want
}
