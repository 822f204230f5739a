// Whether servers answer at all: many are asked at a time.
package doctor

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const (
	reachTimeout = 500 * time.Millisecond
	reachBudget  = 10 * time.Second // for all servers together
	reachAtOnce  = 256              // descriptors are few
)

// reach is what a connection attempt has shown.
type reach struct {
	silent  bool // nothing came back; a refusal shows that the host is there
	unasked bool // there was no time, or no descriptor
}

// reachOf connects to addresses in the calling thread's network namespace, and closes what is accepted.
func reachOf(ctx context.Context, addresses []netip.AddrPort) map[netip.AddrPort]reach {
	found, end := map[netip.AddrPort]reach{}, time.Now().Add(reachBudget)
	for first := 0; first < len(addresses); first += reachAtOnce {
		some := addresses[first:min(first+reachAtOnce, len(addresses))]
		if ctx.Err() != nil || time.Now().After(end) {
			for _, address := range some {
				found[address] = reach{unasked: true}
			}
			continue
		}
		reachSome(ctx, some, found)
	}
	return found
}

func reachSome(ctx context.Context, addresses []netip.AddrPort, found map[netip.AddrPort]reach) {
	var waiting []unix.PollFd
	of := map[int32]netip.AddrPort{}
	for _, address := range addresses {
		fd, err := connect(address)
		if fd < 0 {
			found[address] = reach{unasked: true}
			continue
		}
		defer unix.Close(fd)
		if !errors.Is(err, unix.EINPROGRESS) { // the kernel knows at once
			found[address] = reach{}
			continue
		}
		waiting, of[int32(fd)] = append(waiting, unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}), address
	}
	for deadline := time.Now().Add(reachTimeout); len(waiting) > 0 && ctx.Err() == nil; {
		left := time.Until(deadline)
		if left <= 0 {
			break
		}
		if _, err := unix.Poll(waiting, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			break
		}
		still := waiting[:0]
		for _, w := range waiting {
			if w.Revents == 0 {
				still = append(still, w)
				continue
			}
			failed, err := unix.GetsockoptInt(int(w.Fd), unix.SOL_SOCKET, unix.SO_ERROR)
			found[of[w.Fd]] = reach{silent: err == nil && unix.Errno(failed) == unix.ETIMEDOUT}
		}
		waiting = still
	}
	for _, w := range waiting {
		found[of[w.Fd]] = reach{silent: ctx.Err() == nil, unasked: ctx.Err() != nil}
	}
}

// connect begins a connection. fd: -1 if there is no socket.
func connect(address netip.AddrPort) (fd int, err error) {
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(address.Port()), Addr: address.Addr().As16()})
	if address.Addr().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()}
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	return fd, unix.Connect(fd, to)
}
