package mptcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

var (
	vip  = netip.MustParsePrefix("198.51.100.10/32")
	join = netip.AddrPortFrom(vip.Addr(), 40123)
)

func newSpace(t *testing.T) *netspace.Space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	name := fmt.Sprintf("ballast-mptcp-%d", os.Getpid())
	space, err := netspace.Create(name)
	check(t, err)
	t.Cleanup(func() {
		space.Close()
		check(t, netspace.Remove(name))
	})
	if err := space.Do(func() error { _, err := Endpoints(); return err }); errors.Is(err, ErrUnknown) {
		t.Skip(err)
	}
	return space
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// do runs in the namespace.
func do(t *testing.T, space *netspace.Space, fn func() error) {
	t.Helper()
	check(t, space.Do(fn))
}

func TestTheKernelAnnouncesWhatWasAdded(t *testing.T) {
	space := newSpace(t)
	do(t, space, func() error {
		if err := Add(join); !errors.Is(err, unix.EADDRNOTAVAIL) {
			t.Errorf("an address that the host has not: %v", err)
		}
		return nil
	})
	check(t, space.AddAddress("lo", vip))
	do(t, space, func() error {
		if err := Add(join); err != nil {
			return err
		}
		if err := Add(join); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("the same again: %v", err)
		}
		there, err := Endpoints()
		if err != nil {
			return err
		}
		if len(there) != 1 || there[0].Address != join || !there[0].Signal || there[0].ID == 0 {
			t.Fatalf("endpoints %+v", there)
		}
		if used, err := Used([]netip.AddrPort{join}); err != nil || used[join] != 0 {
			t.Errorf("it is used: %v, %v", used, err)
		}
		if err := Remove(there[0]); err != nil {
			return err
		}
		if there, err = Endpoints(); err != nil || len(there) != 0 {
			t.Errorf("endpoints %+v, %v", there, err)
		}
		return nil
	})
}

func TestConnectionsThatUseAnAddressAreFound(t *testing.T) {
	space := newSpace(t)
	check(t, space.AddAddress("lo", vip))
	do(t, space, func() error {
		var config net.ListenConfig
		listener, err := config.Listen(context.Background(), "tcp4", join.String())
		if err != nil {
			return err
		}
		defer listener.Close()
		conn, err := net.Dial("tcp4", join.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		other := netip.AddrPortFrom(vip.Addr(), 40124)
		used, err := Used([]netip.AddrPort{join, other})
		if used[join] != 1 || used[other] != 0 {
			t.Errorf("used: %v", used)
		}
		return err
	})
}

func TestSettingsThatKeepClientsFromJoiningAreFound(t *testing.T) {
	space := newSpace(t)
	find := func() (found string) {
		do(t, space, func() error { found = strings.Join(Obstacles(), "\n"); return nil })
		return found
	}
	if found := find(); found != "" {
		t.Errorf("of a new namespace: %s", found)
	}
	for key, wrong := range map[string]string{"net.mptcp.enabled": "0", "net.mptcp.pm_type": "1"} {
		before, err := space.ReadFile("/proc/sys/" + strings.ReplaceAll(key, ".", "/"))
		if err != nil {
			continue // older kernels have no pm_type
		}
		check(t, space.Sysctl(key, wrong))
		if found := find(); !strings.Contains(found, key) {
			t.Errorf("%s=%s: found %q", key, wrong, found)
		}
		check(t, space.Sysctl(key, strings.TrimSpace(string(before))))
	}
	do(t, space, func() error {
		for _, may := range []bool{false, true} {
			if err := SetJoinInitial(may); err != nil {
				return err
			}
			if got, err := JoinInitial(); err != nil || got != may {
				t.Errorf("join initial: %v, %v, want %v", got, err, may)
			}
		}
		return nil
	})
}

// Who finds an endpoint by address and port need not ask whether it is announced.
func TestAnEndpointWithAPortIsAnnounced(t *testing.T) {
	space := newSpace(t)
	check(t, space.AddAddress("lo", vip))
	do(t, space, func() error {
		for _, flags := range []uint32{0, 1 << 1, 1 << 2, 1 << 3} { // none, subflow, backup, fullmesh
			address := describe(join)
			address.AddRtAttr(addressFlags, nl.Uint32Attr(flags))
			if _, err := request(commandAdd, unix.NLM_F_ACK, address); !errors.Is(err, unix.EINVAL) {
				t.Errorf("with flags %#x: %v", flags, err)
			}
		}
		return nil
	})
}

// Promise: On kernels before 6.12 and the stable kernels of October 2024, handshakes that join nothing can fill an
// endpoint's queue; connections go on by the first subflow, and `doctor` warns.
func TestKernelsThatTakePlainHandshakesAtAnEndpointAreKnownByACounter(t *testing.T) {
	for counters, want := range map[string]bool{
		"TcpExt: SyncookiesSent\nTcpExt: 0\n":                                          false, // it has no MPTCP
		"MPTcpExt: MPCapableSYNRX MPJoinSynRx\nMPTcpExt: 0 0\n":                        true,
		"MPTcpExt: MPCapableSYNRX MPCapableEndpAttempt MPJoinSynRx\nMPTcpExt: 0 0 0\n": false,
	} {
		if got := takesPlain(counters); got != want {
			t.Errorf("%q: %v", counters, got)
		}
	}
}
