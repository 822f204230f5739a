// Requests through a fleet, and what its programs count of them.
package kernels

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const (
	connections = 12 // of each family
	requests    = 4  // on each
	upload      = 100_000
)

// outputs collects what a process writes, for readers meanwhile.
type outputs struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (o *outputs) Write(p []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.Write(p)
}

func (o *outputs) Bytes() []byte {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return bytes.Clone(o.text.Bytes())
}

// echoes is an HTTP server that sends bodies back, and remembers the addresses that health checks came to.
type echoes struct {
	mutex   sync.Mutex
	checked map[netip.Addr]int
}

func (e *echoes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		local, _ := netip.ParseAddrPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
		e.mutex.Lock()
		e.checked[local.Addr().Unmap()]++
		e.mutex.Unlock()
		return
	}
	if body, err := io.ReadAll(r.Body); err == nil {
		_, _ = w.Write(body)
	}
}

// addresses that checks came to since they were forgotten.
func (e *echoes) addresses() map[netip.Addr]int {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return maps.Clone(e.checked)
}

func (e *echoes) forget() {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	clear(e.checked)
}

func (f *fleet) serve(node string) *echoes {
	echo := &echoes{checked: map[netip.Addr]int{}}
	server := &http.Server{Handler: echo}
	go server.Serve(f.listen(node))
	f.t.Cleanup(func() { server.Close() })
	return echo
}

// A connection is one of the client to a VIP, which requests follow each other on.
type connection struct {
	f      *fleet
	vip    netip.Addr
	client http.Client
	dialed int
}

func (f *fleet) connect(vip netip.Addr) *connection {
	f.opened++
	c := &connection{f: f, vip: vip}
	c.client = http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		c.dialed++
		err = f.spaces["client"].Do(func() error {
			conn, err = (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}}}
	return c
}

// request sends bytes and gets them back, on the connection that all requests have in common.
func (c *connection) request() {
	c.f.t.Helper()
	content := make([]byte, upload)
	for i := range content {
		content[i] = byte(rand.Uint32())
	}
	response, err := c.client.Post("http://"+netip.AddrPortFrom(c.vip, 80).String()+"/", "application/octet-stream", bytes.NewReader(content))
	c.f.must(err)
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	c.f.must(err)
	if !bytes.Equal(body, content) {
		c.f.t.Fatalf("%s: sent %d bytes and got %d others", c.vip, len(content), len(body))
	}
	if c.dialed != 1 {
		c.f.t.Fatalf("%s: the connection broke: it was made %d times", c.vip, c.dialed)
	}
	c.f.requests++
}

func (c *connection) close() { c.client.CloseIdleConnections() }

// exchange makes the connections of the test to a VIP, one after the other, each with all of its requests.
func (f *fleet) exchange(vip netip.Addr) {
	f.t.Helper()
	for range connections {
		c := f.connect(vip)
		for range requests {
			c.request()
		}
		c.close()
	}
}

// enum bpf_attach_type of linux/bpf.h
const (
	tcxIngress = 46
	tcxEgress  = 47
)

// programsAt counts the programs at a hook of a device. Kernels without tcx have none.
func programsAt(device int, hook uint32) uint32 {
	query := struct {
		device, hook, queryFlags, attachFlags uint32
		programs                              uint64
		count, _                              uint32
		rest                                  [4]uint64
	}{device: uint32(device), hook: hook}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY, uintptr(unsafe.Pointer(&query)), unsafe.Sizeof(query))
	if errno != 0 {
		return 0
	}
	return query.count
}

// attachments lists the programs and queueing disciplines of ours on a device.
func attachments(space *netspace.Space, device string) (found []string, err error) {
	return found, space.Do(func() error {
		on, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		if xdp := on.Attrs().Xdp; xdp != nil && xdp.Attached {
			found = append(found, fmt.Sprintf("XDP program %d", xdp.ProgId))
		}
		for _, hook := range []uint32{tcxIngress, tcxEgress} {
			if programs := programsAt(on.Attrs().Index, hook); programs != 0 {
				found = append(found, fmt.Sprintf("%d programs at tcx hook %d", programs, hook))
			}
		}
		disciplines, err := netlink.QdiscList(on)
		for _, discipline := range disciplines {
			if discipline.Type() == "clsact" {
				found = append(found, "clsact")
			}
		}
		return err
	})
}

// TestFleetsWork: requests complete, every packet of an established connection is forwarded by its cookie and restored by the agent, health
// checks take the way of traffic, doctor finds nothing, and after --detach nothing is left.
func TestFleetsWork(t *testing.T) {
	left := strings.FieldsFunc(*cards, func(r rune) bool { return r == ',' })
	for _, mode := range []attach.XDPMode{attach.XDPNative, attach.XDPGeneric} {
		t.Run(string(mode), func(t *testing.T) { fleetWorks(t, mode, nil, 1) })
		if len(left) >= 2*nodes {
			t.Run(string(mode)+"-cards", func(t *testing.T) { fleetWorks(t, mode, left[:2*nodes], 1) })
			left = left[2*nodes:]
		}
	}
}

// TestFleetsWorkByTwoDevices is the same where clients' packets come in by one device of the load balancer, which it is started with, and servers are
// behind another. virtio_net transmits redirected frames only while it has a program itself; cards with one queue share it with the kernel.
// Public: xdp-project/xdp-tools#400 (a card loses all frames that are redirected to it until it has a program itself), facebookincubator/katran#121
// (clients and servers behind two cards).
func TestFleetsWorkByTwoDevices(t *testing.T) {
	left := strings.FieldsFunc(*cards, func(r rune) bool { return r == ',' })
	left = left[min(len(left), 2*2*nodes+2*twoArms):]
	if len(left) == 0 {
		t.Skip("needs -cards")
	}
	for len(left) >= 2*twoArms {
		t.Run(fmt.Sprintf("two-cards-of-%d", queues(left[0])), func(t *testing.T) { fleetWorks(t, attach.XDPNative, left[:2*twoArms], twoArms) })
		left = left[2*twoArms:]
	}
}

// queues counts those that a card receives by.
func queues(card string) int {
	found, _ := filepath.Glob("/sys/class/net/" + card + "/queues/rx-*")
	return len(found)
}

func fleetWorks(t *testing.T, mode attach.XDPMode, cards []string, arms int) {
	newFleet(t, mode, cards, arms).works()
}

func (f *fleet) works() {
	t := f.t
	echo1, echo2 := f.serve("s1"), f.serve("s2")
	stops := map[string]func(){"s1": f.start("agent", "s1"), "s2": f.start("agent", "s2"), "lb": f.start("lb", "lb")}
	if *model != "" {
		f.became(attach.XDPMode(*become))
	}
	f.healthy()
	echo1.forget() // what came before the ways were known
	echo2.forget()
	before := f.counters("lb")
	for _, vip := range vips {
		f.exchange(vip)
	}
	f.countedByCookie(before)
	for name, echo := range map[string]*echoes{"s1": echo1, "s2": echo2} {
		f.await("health checks of "+name+" take the way of traffic", func() error {
			checked := echo.addresses()
			if checked[vips[0]] > 0 && checked[vips[1]] > 0 && len(checked) == len(vips) {
				return nil
			}
			return fmt.Errorf("they came to %v", checked)
		})
	}
	f.healthy() // an emulated machine may have been too slow for checks while requests went
	f.doctor("lb", "lb")
	f.doctor("agent", "s1")
	for node, stop := range stops {
		// XDP, and at tc what restores and marks, or what leads health checks.
		if attached, err := attachments(f.spaces[node], "eth0"); err != nil || len(attached) < 2 {
			t.Errorf("%s: attached is %q: %v", node, attached, err)
		}
		stop()
		f.bare(node)
	}
}

// countedByCookie holds the counters against the traffic of both families since before.
func (f *fleet) countedByCookie(before map[string]uint64) {
	f.t.Helper()
	counted := f.counters("lb")
	for name, count := range before {
		counted[name] -= count
	}
	maps.DeleteFunc(counted, func(_ string, count uint64) bool { return count == 0 })
	f.t.Logf("load balancer: %v", counted)
	total := uint64(len(vips) * connections)
	if counted["forwarded_new"] < total {
		f.t.Errorf("%d of %d connections were dispatched", counted["forwarded_new"], total)
	}
	// Each request is at least two packets of its own, and an acknowledgement of the answer is another.
	if least := total * requests * 3; counted["forwarded_by_cookie"] < least {
		f.t.Errorf("%d packets were forwarded by their cookie, and there must have been %d at least", counted["forwarded_by_cookie"], least)
	}
	for name, count := range counted {
		switch {
		case name == "forwarded_new" || name == "forwarded_by_cookie":
		case name == "forwarded_by_closing": // resets of clients and of health checks that gave up, which carry no timestamp
		case name == "forwarded_reset": // of this host itself: for what servers still sent when a health check had ended
		case strings.HasPrefix(name, "forwarded_") || strings.HasPrefix(name, "dropped_"):
			f.t.Errorf("load balancer: %s %d", name, count)
		}
	}
	var restored uint64
	for _, server := range []string{"s1", "s2"} {
		agent := f.counters(server)
		maps.DeleteFunc(agent, func(_ string, count uint64) bool { return count == 0 })
		f.t.Logf("%s: %v", server, agent)
		restored += agent["ingress_restored"]
		if agent["ingress_bad_cookie"] != 0 {
			f.t.Errorf("%s: %d bad cookies", server, agent["ingress_bad_cookie"])
		}
	}
	if restored < total*requests {
		f.t.Errorf("agents restored the timestamps of %d packets, and there must have been %d at least", restored, total*requests)
	}
}
