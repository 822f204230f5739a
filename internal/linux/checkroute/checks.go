// Package checkroute loads bpf/check.bpf.c and attaches it: health checks reach one certain server by the path of traffic.
package checkroute

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/check"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

//go:generate go tool bpf2go -target bpfel -type check_path -type check_handed check ../../../bpf/check.bpf.c

// Key names a server of a service.
type Key struct {
	Service string
	ID      uint16
}

// Target is a server that connections to its VIP are to reach by the path of traffic.
type Target struct {
	VIP     netip.Addr
	Server  netip.Addr
	Forward model.Forward
	Return  model.Return
	Path    plan.Path // to the server; zero: not known
	Number  uint32    // of the service in the load balancer's tables
	ID      uint16    // of the server there
	Absent  bool      // the tables have no such server now: the load balancer's program cannot send to it, and the kernel sends all
	// Ports are those that the server's agent takes TCP from a tunnel for: the service's, and what is checked instead of them if
	// the agent knows of it. Others are checked straight, unless forward is l2: then without a look at the cookie. Nil: all are taken.
	Ports []model.PortRange
	// Owns tells whether the timestamp that the server has sent in a connection of client to port carries its own cookie. Nil: it has
	// none to carry.
	Owns func(client netip.AddrPort, port uint16, timestamp uint32) bool
	// Placed: new connections go by placement, which finds their later packets without a cookie too.
	Placed bool
}

// Connections to such servers break, as load balancers cannot read where their packets belong.
var (
	ErrForeignCookie = errors.New("the cookie in its answer is not its own: its key or its id differs from what is known here, or its agent does not mark: compare keys and ids of both, and start its agent")
	ErrNoTimestamps  = errors.New("its answer has no TCP timestamps, so its new connections carry no cookies: set net.ipv4.tcp_timestamps=1 there")
)

// Checks lets sockets of this host reach one certain server at an address that many have (bpf/check.bpf.c): packets to the VIP are
// encapsulated, or given the server's MAC, at tc egress of the devices that this host's routes to the VIP lead out of. The
// servers' answers come straight back to this host. Nothing of the host is changed: no route, rule, mark or sysctl. When the process
// ends nothing is left or, without tcx, a filter that has nothing to do and that the next process deletes. Its methods are safe for
// concurrent use.
//
// Sockets are connected to the VIP or, where this host has that itself or no route to it, to the server's own address: the VIP takes its place on
// the way, if it is of the same family. It cannot serve services with forward nat or return through, whose servers
// would answer to another address. Those checks go straight to the servers.
type Checks struct {
	objects checkObjects
	sender  Sender
	sends   atomic.Bool // Run runs
	refused atomic.Pointer[error]

	mu      sync.Mutex
	targets map[Key]checkTarget
	dir     string
	links   map[place]*attach.TC
	tried   bool // that the sender works
	closed  bool
}

// place is a hook of a device.
type place struct {
	device int
	hook   string
}

// checkTarget is what Dial needs to know.
type checkTarget struct {
	whyNot string // why not through the tunnel
	path   checkCheckPath
	direct checkCheckPath // of packets to the server itself, if XDP sends the first
	to     netip.Addr     // where its sockets are connected to: the VIP, or the server's own address in its place
	server netip.Addr
	source netip.Addr // of the connection; zero: the kernel's choice

	devices []int // that its packets leave by
	back    []int // that answers come by whose VIP the server's address takes the place of
	mss     int
	ports   []model.PortRange // nil: any
	tunnel  bool              // packets are encapsulated: other ports than these stay in it
	owns    func(client netip.AddrPort, port uint16, timestamp uint32) bool
	placed  bool
}

// whyDirect is why the port is not checked through the tunnel, empty: it is.
func (t *checkTarget) whyDirect(port uint16) string {
	if t.whyNot == "" && t.tunnel && !t.takes(port) {
		return fmt.Sprintf("port %d is not the service's", port)
	}
	return t.whyNot
}

// takes tells whether the server's agent knows the port.
func (t *checkTarget) takes(port uint16) bool {
	return t.ports == nil || model.InPorts(t.ports, port)
}

// path is written as it is.
var _ = [1]struct{}{}[unsafe.Sizeof(checkCheckPath{})-104]

// Open loads the program. Nothing is attached before Set. dir, the instance's directory in a BPF file system, tells what a killed
// process has left: without tcx that is a filter, which is deleted now. Without a sender the kernel sends all packets.
func Open(dir string, sender Sender) (*Checks, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift the limit on locked memory: %w", err)
	}
	if err := attach.RemoveFilters(dir, attach.OfChecks...); err != nil {
		return nil, err
	}
	if sender == nil {
		sender = noSender{}
	}
	c := &Checks{dir: dir, links: map[place]*attach.TC{}, sender: sender}
	if err := loadCheckObjects(&c.objects, nil); err != nil {
		return nil, fmt.Errorf("load the program of health checks: %w", err)
	}
	return c, nil
}

// Set replaces the targets and attaches to the devices that their VIPs are routed by in the calling thread's network namespace,
// to no others. Call it again when routes, neighbours or paths have changed. After an error, what could not be attached to is checked straight.
func (c *Checks) Set(targets map[Key]Target) error {
	routes := newCheckRoutes()
	ready := make(map[Key]checkTarget, len(targets))
	wanted, sends := map[place]*attach.TC{}, false
	for key, target := range targets {
		made := routes.prepare(&target)
		ready[key] = made
		byXDP := c.sender.ByXDP(made.direct.Ifindex)
		sends = sends || byXDP
		for _, device := range routes.leavesBy(&made, byXDP) {
			c.want(wanted, &attach.TC{Program: c.objects.CheckEgress, Hook: attach.Egress, Ifindex: device})
		}
		for _, device := range made.back {
			c.want(wanted, &attach.TC{Program: c.objects.CheckIngress, Hook: attach.CheckIngress, Ifindex: device})
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.try(sends)
	failed, err := c.attach(wanted)
	for key, made := range ready {
		for _, device := range slices.Concat(made.devices, made.back) {
			if made.whyNot == "" && failed[device] != "" {
				made.whyNot = failed[device]
				ready[key] = made
			}
		}
	}
	c.targets = ready
	return err
}

// want adds a place to those that programs are to run at.
func (c *Checks) want(wanted map[place]*attach.TC, at *attach.TC) {
	at.Dir = c.dir
	wanted[place{at.Ifindex, at.Hook.Name}] = at
}

// attach makes the programs run at exactly these places. failed says, by device, why one does not.
func (c *Checks) attach(wanted map[place]*attach.TC) (failed map[int]string, err error) {
	failed = map[int]string{}
	for at, attached := range c.links {
		if wanted[at] != nil && attached.Runs() == nil {
			continue
		}
		err = errors.Join(err, attached.Detach())
		delete(c.links, at)
	}
	for at, made := range wanted {
		if c.links[at] != nil {
			continue
		}
		if problem := made.Attach(); problem != nil {
			problem = fmt.Errorf("health checks: %w", problem)
			failed[at.device], err = problem.Error(), errors.Join(err, problem)
			continue
		}
		c.links[at] = made
	}
	return failed, err
}

// Dial connects to the VIP's port at the target's server by TCP, or with a hello by UDP, and sends that. Remarks that say Direct: the server's own address has to do.
func (c *Checks) Dial(ctx context.Context, key Key, port uint16, hello []byte) (conn net.Conn, remarks check.Remarks, err error) {
	direct := func(why string) (net.Conn, check.Remarks, error) { return nil, check.Remarks{Direct: why}, nil }
	c.mu.Lock()
	target, ok := c.targets[key]
	c.mu.Unlock()
	switch why := target.whyDirect(port); {
	case !ok:
		return direct("its path is not set up yet")
	case why != "" && c.byXDP(target.direct.Ifindex):
		return c.dialDirect(ctx, &target, port, hello, why)
	case why != "":
		return direct(why)
	case target.path.Ifindex == 0:
		return nil, remarks, errors.New("the next hop to the server is not known")
	}
	if c.byXDP(target.path.Ifindex) {
		target.path.ByXdp = checkByXDP
		remarks.SentBy = int(target.path.Ifindex)
	}
	witness := -1 // a second descriptor of the socket, for its storage
	var unprepared error
	conn, err = dial(ctx, target.source, netip.AddrPortFrom(target.to, port), hello, func(fd int) error {
		witness, unprepared = c.prepareSocket(fd, &target, hello == nil)
		return unprepared
	})
	if unprepared != nil { // says nothing about the server
		return direct(unprepared.Error())
	}
	if witness < 0 {
		return nil, remarks, err
	}
	defer unix.Close(witness)
	if !c.sawPackets(witness) {
		if conn != nil {
			conn.Close()
		}
		return direct(c.goDirectly(key, fmt.Sprintf("packets to %s leave this host by another device than its route says, or by none", target.to)))
	}
	if err == nil && hello == nil && target.owns != nil && target.takes(port) { // agents mark nothing else
		if remarks.Cookie, err = c.readCookie(witness, conn, &target, port); err != nil {
			conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
			return nil, remarks, err
		}
	}
	return conn, remarks, err
}

// The kernel answers the SYN-ACK at about the time at which it says that the connection is there.
const (
	echoTries = 50
	echoPause = time.Millisecond

	tcpInfoTimestamps = 1 // TCPI_OPT_TIMESTAMPS
)

// readCookie looks at what the server has put into its SYN-ACK.
func (c *Checks) readCookie(fd int, conn net.Conn, target *checkTarget, port uint16) (found check.Cookie, err error) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	switch {
	case err != nil || info.Options&tcpInfoTimestamps == 0 && netdev.CheckTimestamps() != nil: // this host has offered none
		return check.CookieNotSeen, nil
	case info.Options&tcpInfoTimestamps == 0 && target.placed:
		return check.CookieMissing, nil
	case info.Options&tcpInfoTimestamps == 0:
		return check.CookieMissing, ErrNoTimestamps
	}
	var path checkCheckPath
	for try := 0; path.Echoes == 0; try++ {
		if try == echoTries || c.objects.Paths.Lookup(uint32(fd), &path) != nil {
			return check.CookieNotSeen, nil
		}
		if path.Echoes == 0 {
			time.Sleep(echoPause)
		}
	}
	client := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	if !target.owns(netip.AddrPortFrom(client.Addr().Unmap(), client.Port()), port, path.Echo) {
		return check.CookieForeign, ErrForeignCookie
	}
	return check.CookieOwn, nil
}

// prepareSocket tells the program where packets of the socket go.
func (c *Checks) prepareSocket(fd int, target *checkTarget, tcp bool) (witness int, err error) {
	if err := c.objects.Paths.Put(uint32(fd), target.path); err != nil {
		return -1, fmt.Errorf("store the path to the server with the socket: %w", err)
	}
	if !tcp {
		return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	// What goes through the tunnel must fit the path, in both directions.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, target.mss); err != nil {
		return -1, fmt.Errorf("set the segment size to %d: %w", target.mss, err)
	}
	if len(target.back) > 0 { // answers of all servers look alike: no two checks may have the same port
		return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	// All checks of a service share one destination: ports are taken when that is known.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
		return -1, fmt.Errorf("put off the choice of a port: %w", err)
	}
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

func (c *Checks) sawPackets(fd int) bool {
	var path checkCheckPath
	return c.objects.Paths.Lookup(uint32(fd), &path) == nil && path.Packets > 0
}

// goDirectly is for a target whose packets do not come by: until the next Set its checks go straight.
func (c *Checks) goDirectly(key Key, why string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if target, ok := c.targets[key]; ok {
		target.whyNot = why
		c.targets[key] = target
	}
	return why
}

// Close detaches, in the calling thread's network namespace, and unloads the program. Connections that were made go on without it, which is of no use: end them first.
func (c *Checks) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.attach(nil)
	c.targets, c.closed = nil, true
	return errors.Join(err, c.objects.Close())
}

// Try has the kernel load the program of health checks, and tells whether it can be attached.
func Try() error {
	var objects checkObjects
	if err := errors.Join(rlimit.RemoveMemlock(), loadCheckObjects(&objects, nil)); err != nil {
		return err
	}
	return errors.Join(attach.HaveTC(), objects.Close())
}

// Object is the compiled BPF object (ELF) that is loaded.
func Object() []byte { return _CheckBytes }
