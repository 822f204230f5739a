package netdev

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel drops answers that a socket has no room for (EAGAIN and ENOBUFS): they are asked for again, one at a time.
func TestRoutesWhoseAnswersWereDroppedAreAskedForAgain(t *testing.T) {
	var batch []netip.Addr
	for address := netip.MustParseAddr("127.0.0.1"); len(batch) < atOnce; address = address.Next() {
		batch = append(batch, address)
	}
	small, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(small)
	if err := unix.SetsockoptInt(small, unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil { // the least that the kernel gives
		t.Fatal(err)
	}
	routes := Routes{by: map[netip.Addr]uint32{}, index: map[route]uint32{}}
	if err := routes.exchange(small, batch); err != nil {
		t.Fatal(err)
	}
	for _, address := range batch {
		if i, known := routes.by[address]; !known || routes.distinct[i].kind != unix.RTN_LOCAL {
			t.Errorf("%s: %+v, known: %t", address, routes.distinct, known)
		}
	}
	if routes.Asked <= len(batch) {
		t.Fatalf("all answers fitted into the smallest buffer: %d questions", routes.Asked)
	}
}

// What a broken socket has not answered is not taken for an answer, and the next question has a socket of its own.
func TestABrokenSocketLeavesRoutesUnknown(t *testing.T) {
	address := netip.MustParseAddr("127.0.0.1")
	routes := Routes{by: map[netip.Addr]uint32{}, index: map[route]uint32{}}
	if err := routes.exchange(-1, []netip.Addr{address}); !errors.Is(err, unix.EBADF) {
		t.Fatalf("by no socket: %v", err)
	}
	if found, err := routes.get(address); err != nil || found.kind != unix.RTN_LOCAL {
		t.Errorf("%+v, %v", found, err)
	}
}
