package mptcp

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

func TestListenersWithMPTCPAreTold(t *testing.T) {
	space := newSpace(t)
	v6 := netip.MustParsePrefix("2001:db8:51::10/128")
	for _, address := range []netip.Prefix{vip, v6} {
		if err := space.AddAddress("lo", address); err != nil {
			t.Fatal(err)
		}
	}
	listen(t, space, true, "tcp", ":443")
	listen(t, space, true, "tcp6", ":444")
	listen(t, space, false, "tcp4", vip.Addr().String()+":444")
	listen(t, space, true, "tcp4", vip.Addr().String()+":445")
	listen(t, space, true, "tcp6", "["+v6.Addr().String()+"]:446")
	listen(t, space, false, "tcp", ":447")
	listen(t, space, true, "tcp6", ":448")
	var list []Listener
	if err := space.Do(func() (err error) { list, err = Listeners(); return err }); err != nil {
		t.Fatal(err)
	}
	if len(list) != 7 {
		t.Errorf("%v", list)
	}
	for port, want := range map[uint16][2]bool{443: {true, true}, 444: {false, true}, 445: {true, false}, 446: {false, true}, 447: {}, 448: {false, true}, 449: {}} {
		for i, address := range []netip.Addr{vip.Addr(), v6.Addr()} {
			if got := ListensAt(list, netip.AddrPortFrom(address, port)); got != want[i] {
				t.Errorf("%s, port %d: %v", address, port, got)
			}
		}
	}
}

func listen(t *testing.T, space *netspace.Space, multipath bool, network, at string) {
	t.Helper()
	config := net.ListenConfig{}
	config.SetMultipathTCP(multipath)
	if err := space.Do(func() error {
		listener, err := config.Listen(context.Background(), network, at)
		if err == nil {
			t.Cleanup(func() { listener.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
