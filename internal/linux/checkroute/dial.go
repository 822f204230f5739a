package checkroute

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"github.com/ballast-lb/ballast/internal/linux/check"
)

// checkHere is CHECK_HERE of enum check_forward, whose others are those of model.Forward.
const checkHere = 3

// enum check_by_xdp
const (
	checkByXDP       = 1
	checkByXDPDirect = 2
)

// dial connects by TCP, or with a hello by UDP, and sends that. The source is the kernel's choice if it is zero. prepare gets the socket's descriptor.
func dial(ctx context.Context, source netip.Addr, to netip.AddrPort, hello []byte, prepare func(fd int) error) (conn net.Conn, err error) {
	dialer := net.Dialer{KeepAlive: -1, FallbackDelay: -1, Control: func(_, _ string, raw syscall.RawConn) error {
		var unprepared error
		return errors.Join(raw.Control(func(fd uintptr) { unprepared = prepare(int(fd)) }), unprepared)
	}}
	dialer.SetMultipathTCP(false)
	if hello == nil {
		if source.IsValid() {
			dialer.LocalAddr = &net.TCPAddr{IP: source.AsSlice()}
		}
		return dialer.DialContext(ctx, "tcp", to.String())
	}
	if source.IsValid() {
		dialer.LocalAddr = &net.UDPAddr{IP: source.AsSlice()}
	}
	if conn, err = dialer.DialContext(ctx, "udp", to.String()); err == nil {
		_, err = conn.Write(hello)
	}
	return conn, err
}

// dialDirect connects to the server's own address. The load balancer's program sends the first packet: it leaves by the device that clients' packets
// leave by, if this host's route to the server does.
func (c *Checks) dialDirect(ctx context.Context, target *checkTarget, port uint16, hello []byte, why string) (net.Conn, check.Remarks, error) {
	remarks := check.Remarks{Direct: why, SentBy: int(target.direct.Ifindex)}
	conn, err := dial(ctx, netip.Addr{}, netip.AddrPortFrom(target.server, port), hello, func(fd int) error {
		return c.objects.Paths.Put(uint32(fd), target.direct)
	})
	return conn, remarks, err
}
