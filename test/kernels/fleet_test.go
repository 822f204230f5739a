// Package kernels shows that Ballast works on the kernel that it runs on: `make test-kernels` runs it in virtual machines with those of
// Debian. On a host: go test ./test/kernels, as root, after make build.
package kernels

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/doctor"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

var (
	binary = flag.String("ballast", "../../bin/ballast", "the `BINARY` that is tested")
	cards  = flag.String("cards", "", "network `CARDS` of the nodes instead of veth: pairs that a wire joins, three for each mode, two for an agent with two cards, then two for each load balancer with two cards, such as eth0,eth1,...,eth19")
)

// nodes of a fleet: the load balancer and the servers. twoArms: the load balancer has one device for clients, one for servers.
const nodes, twoArms = 3, 2

// patience is for what takes a second where nothing else runs: an emulated machine verifies the load balancer for ten, or sixty.
const patience = 5 * time.Minute

const fleetFile = `
keys: {placement: 00112233445566778899aabbccddeeff, current: 1, cookie: {1: ffeeddccbbaa99887766554433221100}}
services:
  - {name: four, vip: 198.51.100.10, ports: [80], health: {check: http, path: /health, interval: 1s, timeout: 1s}, servers: [
      {name: s1, id: 1, address: 10.60.0.11}, {name: s2, id: 2, address: 10.60.0.12}]}
  - {name: six, vip: "2001:db8::10", ports: [80], health: {check: http, path: /health, interval: 1s, timeout: 1s}, servers: [
      {name: s1, id: 1, address: "fd60::11"}, {name: s2, id: 2, address: "fd60::12"}]}
`

var vips = []netip.Addr{netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("2001:db8::10")}

// A fleet is a client behind a router, and a load balancer and two servers on a bridge of it:
//
//	client ---- router ==(bridge)== lb, s1, s2
//
// With two arms the load balancer has a link of its own to the router, too, by which clients' packets come in.
type fleet struct {
	t      *testing.T
	cards  []string
	arms   int
	mode   attach.XDPMode
	spaces map[string]*netspace.Space
	file   string
	wire   *link.Wire
	device string // that the load balancer is started with; empty: eth0

	opened, requests int // connections, and requests that were answered on them
}

func newFleet(t *testing.T, mode attach.XDPMode, cards []string, arms int) *fleet {
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces and BPF")
	}
	if _, err := os.Stat(*binary); err != nil {
		t.Fatalf("%v: make build", err)
	}
	f := &fleet{t: t, cards: cards, arms: arms, mode: mode, spaces: map[string]*netspace.Space{}, file: filepath.Join(t.TempDir(), "ballast.yaml")}
	f.must(os.WriteFile(f.file, []byte(fleetFile), 0o600))
	var err error
	f.wire, err = link.Load()
	f.must(err)
	t.Cleanup(func() { f.wire.Close() })
	router := f.space("router")
	f.must(router.Sysctl("net.ipv4.ip_forward", "1"))
	f.must(router.Sysctl("net.ipv6.conf.all.forwarding", "1"))
	f.must(router.AddBridge("fabric", 1600, netip.MustParsePrefix("10.60.0.1/24"), netip.MustParsePrefix("fd60::1/64")))
	f.must(netspace.Connect(
		netspace.End{Space: f.space("client"), Interface: "eth0", MTU: 1500, Addresses: prefixes("10.61.0.2/24", "fd61::2/64")},
		netspace.End{Space: router, Interface: "clients", MTU: 1500, Addresses: prefixes("10.61.0.1/24", "fd61::1/64")}))
	f.routes("client", "10.61.0.1", "fd61::1", "0.0.0.0/0", "::/0")
	lb4, lb6, lbDevice := "10.60.0.10", "fd60::10", "fabric"
	if arms == 1 {
		f.join("lb", "10.60.0.10/24", "fd60::10/64")
	} else {
		lb4, lb6, lbDevice = "10.62.0.10", "fd62::10", "front"
		f.joinByTwo()
	}
	f.join("s1", "10.60.0.11/24", "fd60::11/64")
	f.join("s2", "10.60.0.12/24", "fd60::12/64")
	for _, vip := range vips {
		all := netip.PrefixFrom(vip, vip.BitLen())
		f.must(f.spaces["s1"].AddAddress("lo", all))
		f.must(f.spaces["s2"].AddAddress("lo", all))
		lb := netip.MustParseAddr(lb4)
		if vip.Is6() {
			lb = netip.MustParseAddr(lb6)
		}
		f.must(router.Route(all, 0, netspace.NextHop{Gateway: lb, Interface: lbDevice}))
	}
	return f
}

func (f *fleet) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func (f *fleet) space(name string) *netspace.Space {
	space, err := netspace.CreateUnnamed()
	f.must(err)
	f.t.Cleanup(space.Close)
	f.spaces[name] = space
	for key, value := range map[string]string{
		"net.ipv6.conf.default.accept_dad": "0", "net.ipv4.conf.all.rp_filter": "0", "net.ipv4.conf.default.rp_filter": "0",
		"net.ipv4.conf.all.arp_ignore": "1", "net.ipv4.conf.all.arp_announce": "2",
	} {
		f.must(space.Sysctl(key, value))
	}
	f.must(space.ReceiveOn(netspace.AllCPUs()))
	return space
}

// join connects a node to the bridge. The bridge's port has a program, too: veth sends nothing out of XDP to a peer without.
func (f *fleet) join(name string, addresses ...string) {
	f.plug(netspace.End{Space: f.space(name), Interface: "eth0", MTU: 1600, Addresses: prefixes(addresses...)},
		netspace.End{Space: f.spaces["router"], Interface: name, MTU: 1600, Bridge: "fabric"})
	f.routes(name, "10.60.0.1", "fd60::1", "0.0.0.0/0", "::/0")
}

// joinByTwo connects the load balancer to the router by eth0, and to the bridge by eth1.
func (f *fleet) joinByTwo() {
	lb, router := f.space("lb"), f.spaces["router"]
	f.plug(netspace.End{Space: lb, Interface: "eth0", MTU: 1500, Addresses: prefixes("10.62.0.10/24", "fd62::10/64")},
		netspace.End{Space: router, Interface: "front", MTU: 1500, Addresses: prefixes("10.62.0.1/24", "fd62::1/64")})
	f.plug(netspace.End{Space: lb, Interface: "eth1", MTU: 1600, Addresses: prefixes("10.60.0.10/24", "fd60::10/64")},
		netspace.End{Space: router, Interface: "lb", MTU: 1600, Bridge: "fabric"})
	f.routes("lb", "10.62.0.1", "fd62::1", "0.0.0.0/0", "::/0")
}

// plug joins two ends by the next pair of cards, or a veth pair.
func (f *fleet) plug(node, port netspace.End) {
	if len(f.cards) > 0 {
		f.must(netspace.Plug(f.cards[0], node))
		f.must(netspace.Plug(f.cards[1], port))
		f.cards = f.cards[2:]
		return
	}
	f.must(netspace.Connect(node, port))
	f.must(f.spaces["router"].AttachXDP(port.Interface, f.wire.PassFD()))
}

func (f *fleet) routes(name, gateway4, gateway6, to4, to6 string) {
	for to, gateway := range map[string]string{to4: gateway4, to6: gateway6} {
		f.must(f.spaces[name].Route(netip.MustParsePrefix(to), 0, netspace.NextHop{Gateway: netip.MustParseAddr(gateway), Interface: "eth0"}))
	}
}

// flags of every command about a node's daemon.
func (f *fleet) flags(node string) []string {
	return []string{"--run-dir", filepath.Join(filepath.Dir(f.file), node)}
}

// interfaceOf is what a daemon of the role is started with.
func (f *fleet) interfaceOf(role string) string {
	if role == "lb" && f.device != "" {
		return f.device
	}
	return "eth0"
}

// run runs ballast to its end in a node's namespace.
func (f *fleet) run(node string, arguments ...string) ([]byte, error) {
	var output, complaint outputs
	command := exec.Command(*binary, append(arguments, f.flags(node)...)...)
	command.Stdout, command.Stderr = &output, &complaint
	f.must(f.spaces[node].Start(command))
	err := command.Wait()
	if err != nil {
		err = fmt.Errorf("ballast %v: %w: %s", arguments, err, complaint.Bytes())
	}
	return output.Bytes(), err
}

// refusal runs a load balancer that is to end at once: it returns the line that says why, or nothing if it became ready instead.
func (f *fleet) refusal(command *exec.Cmd) (said string) {
	f.t.Helper()
	var log outputs
	command.Stdout, command.Stderr = &log, &log
	f.must(f.spaces["lb"].Start(command))
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	f.await("the load balancer is refused or ready", func() error {
		select {
		case <-ended:
			lines := strings.Split(strings.TrimSpace(string(log.Bytes())), "\n")
			said = lines[len(lines)-1]
			return nil
		default:
		}
		status, err := f.client("lb").Status(context.Background())
		if err != nil || !status.Ready {
			return fmt.Errorf("%v: %s", err, log.Bytes())
		}
		_ = command.Process.Signal(syscall.SIGTERM)
		<-ended
		return nil
	})
	_, err := f.run("lb", "lb", "--detach")
	f.must(err)
	return said
}

// start starts a daemon of the fleet and waits until it is ready. It is stopped, and its data path removed, at the end of the test at the latest.
func (f *fleet) start(role, node string) (stop func()) {
	f.t.Helper()
	var log outputs
	arguments := append([]string{role, "-f", f.file, "--interface", f.interfaceOf(role), "--xdp-mode", string(f.mode),
		"--state-dir", filepath.Join(filepath.Dir(f.file), node+"-state")}, f.flags(node)...)
	if role == "agent" {
		arguments = append(arguments, "--server", node)
	}
	command := exec.Command(*binary, arguments...)
	command.Stdout, command.Stderr = &log, &log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	f.must(f.spaces[node].Start(command))
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = command.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil {
			f.t.Errorf("%s on %s: %v: %s", role, node, err, log.Bytes())
		}
		arguments := []string{role, "--detach"}
		if role == "agent" { // which refuses while a connection lives, such as that of a health check
			arguments = append(arguments, "--yes")
		}
		if _, err := f.run(node, arguments...); err != nil {
			f.t.Error(err)
		}
	}
	f.t.Cleanup(stop)
	f.await(role+" on "+node+" is ready", func() error {
		select {
		case err := <-ended:
			stopped = true
			f.t.Fatalf("%s on %s ended: %v: %s", role, node, err, log.Bytes())
		default:
		}
		status, err := f.client(node).Status(context.Background())
		if err == nil && !status.Ready {
			err = fmt.Errorf("%s", log.Bytes())
		}
		return err
	})
	return stop
}

func (f *fleet) client(node string) *api.Client {
	return api.NewClient(api.SocketPath(f.flags(node)[1], "default"))
}

func (f *fleet) await(what string, condition func() error) {
	f.t.Helper()
	began := time.Now()
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Since(began) > patience {
			f.t.Fatalf("%s: not within %v: %v", what, patience, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// counters of a daemon.
func (f *fleet) counters(node string) map[string]uint64 {
	f.t.Helper()
	counters, err := f.client(node).Counters(context.Background())
	f.must(err)
	return counters
}

// healthy waits until the load balancer finds every server healthy.
func (f *fleet) healthy() {
	f.t.Helper()
	f.await("all servers are healthy", func() error {
		text, err := f.run("lb", "ctl", "servers", "--json")
		if err != nil {
			return err
		}
		var servers []struct{ Name, Health, HealthDetail string }
		if err := json.Unmarshal(text, &servers); err != nil {
			return err
		}
		for _, server := range servers {
			if server.Health != "healthy" {
				return fmt.Errorf("%s", text)
			}
		}
		if len(servers) != 4 {
			return fmt.Errorf("%d servers: %s", len(servers), text)
		}
		return nil
	})
}

// doctor finds no problem on a node.
func (f *fleet) doctor(role, node string) {
	f.t.Helper()
	arguments := []string{"doctor", "--json", "--role", role, "-f", f.file, "--interface", f.interfaceOf(role)}
	if role == "agent" {
		arguments = append(arguments, "--server", node)
	}
	text, err := f.run(node, arguments...)
	var findings []doctor.Finding
	if json.Unmarshal(text, &findings) != nil || len(findings) == 0 {
		f.t.Fatalf("doctor on %s: %v: %s", node, err, text)
	}
	for _, finding := range findings {
		if finding.Severity == doctor.Problem {
			f.t.Errorf("doctor on %s: %+v", node, finding)
		}
	}
	if err != nil {
		f.t.Error(err)
	}
}

// bare waits until nothing is attached to the node's devices: the kernel lets go of links a little later.
func (f *fleet) bare(node string) {
	f.t.Helper()
	f.await("nothing is left on "+node+" after --detach", func() error {
		left, err := attachments(f.spaces[node], "eth0")
		if err == nil && node == "lb" && f.arms == twoArms {
			var more []string
			more, err = attachments(f.spaces[node], "eth1")
			left = append(left, more...)
		}
		pins, _ := filepath.Glob(filepath.Join(f.flags(node)[1], "bpf", "*", "*"))
		if left = append(left, pins...); err == nil && len(left) != 0 {
			err = fmt.Errorf("there still is %q", left)
		}
		return err
	})
}

// listen serves HTTP on a server's port 80 of all addresses.
func (f *fleet) listen(node string) net.Listener {
	var listener net.Listener
	f.must(f.spaces[node].Do(func() (err error) {
		listener, err = net.Listen("tcp", ":80")
		return err
	}))
	return listener
}
