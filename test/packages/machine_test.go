// Package packages shows what Debian's packages of Ballast do to a machine with systemd, as its operator sees it. `make test-packages` runs it
// in virtual machines: it installs and removes.
package packages

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

var (
	older = flag.String("older", "", "`DIRECTORY` of the packages that are installed first")
	newer = flag.String("newer", "", "`DIRECTORY` of those that they are upgraded to")
)

// patience is for what takes seconds where nothing is emulated.
const patience = 10 * time.Minute

// A machine is the virtual machine that the test runs in, itself the load balancer:
//
//	client ---- router ==(bridge)== this machine, s1
type machine struct {
	t      *testing.T
	router *netspace.Space
	client *netspace.Space
	server *netspace.Space
}

const network = `
ip -n router link add fabric mtu 1600 type bridge
ip -n router address add 10.60.0.1/24 dev fabric
ip -n router link set fabric up
ip link add lb0 mtu 1600 type veth peer name lb netns router
ip link add clients netns router type veth peer name eth0 netns client
ip link add s1 mtu 1600 netns router type veth peer name eth0 netns s1
ip -n s1 link set eth0 mtu 1600
ip -n router link set lb mtu 1600 master fabric up
ip -n router link set s1 master fabric up
ip -n router address add 10.61.0.1/24 dev clients
ip -n router link set clients up
ip netns exec router sysctl -qw net.ipv4.ip_forward=1
ip address add 10.60.0.10/24 dev lb0
ip link set lb0 up
ip route add default via 10.60.0.1
ip -n client address add 10.61.0.2/24 dev eth0
ip -n client link set eth0 up
ip -n client route add default via 10.61.0.1
ip -n s1 address add 10.60.0.11/24 dev eth0
ip -n s1 address add 198.51.100.10/32 dev lo
ip -n s1 link set eth0 up
ip -n s1 route add default via 10.60.0.1
# As on a wire: programs must not meet checksums that are still to be made.
ethtool -K lb0 tx off rx off
for end in "router lb" "router s1" "router clients" "client eth0" "s1 eth0"; do
  ip netns exec ${end% *} ethtool -K ${end#* } tx off rx off
done
`

// bird is what docs/run/bgp.md tells the operator of a router to write, but for BFD, which an emulated CPU does not keep up with.
const bird = `
router id 10.60.0.1;
log stderr all;
protocol device { }
protocol kernel { ipv4 { import none; export all; }; }
filter vips { if net ~ [ 198.51.100.0/24{32,32} ] then accept; reject; }
protocol bgp lb1 {
  local as 64512;
  passive on;
  neighbor 10.60.0.10 as 64600;
  graceful restart aware;
  error wait time 1, 10;
  ipv4 { import filter vips; export none; };
}
`

const fleet = `
keys: {placement: 00112233445566778899aabbccddeeff, current: 1, cookie: {1: ffeeddccbbaa99887766554433221100}}
nodes:
  - name: lb1
    bgp: {as: 64600, neighbors: [10.60.0.1], neighbor_as: 64512, announce_delay: 1s}
services:
  - name: web
    vip: 198.51.100.10
    ports: [80, 7]
    health: {check: http, path: /, interval: 1s}
    servers:
      - {name: s1, id: 1, address: 10.60.0.11}
`

func newMachine(t *testing.T) *machine {
	m := &machine{t: t}
	for name, space := range map[string]**netspace.Space{"router": &m.router, "client": &m.client, "s1": &m.server} {
		made, err := netspace.Create(name)
		m.must(err)
		*space = made
	}
	m.write("/root/network", network)
	m.run("bash", "-e", "/root/network")
	m.write("/root/bird.conf", bird)
	router := exec.Command("bird", "-f", "-c", "/root/bird.conf", "-s", "/run/router.ctl")
	m.must(m.router.Start(router))
	t.Cleanup(func() {
		_ = router.Process.Kill()
		_ = router.Wait()
	})
	return m
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) write(path, text string) {
	m.t.Helper()
	m.must(os.MkdirAll(filepath.Dir(path), 0o755))
	m.must(os.WriteFile(path, []byte(text), 0o600))
}

// try runs a command of the operator.
func (m *machine) try(name string, arguments ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var output bytes.Buffer
	command := exec.CommandContext(ctx, name, arguments...)
	command.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	command.Stdout, command.Stderr = &output, &output
	began := time.Now()
	err := command.Run()
	m.t.Logf("%s %s: %.1f s: %v", name, strings.Join(arguments, " "), time.Since(began).Seconds(), err)
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(arguments, " "), err, output.Bytes())
	}
	return strings.TrimSpace(output.String()), err
}

func (m *machine) run(name string, arguments ...string) string {
	m.t.Helper()
	output, err := m.try(name, arguments...)
	m.must(err)
	return output
}

// await looks until the condition returns nil.
func (m *machine) await(what string, condition func() error) {
	m.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			m.t.Fatalf("wait until %s: not within %v: %v\n%s", what, patience, err, m.journal())
		}
	}
}

// journal is the end of what the daemons and systemd have said.
func (m *machine) journal() string {
	text, err := exec.Command("journalctl", "--no-pager", "-n", "60", "-u", "ballast-*").CombinedOutput()
	return fmt.Sprintf("%s %v", text, err)
}

// property of a unit, as systemctl show has it.
func (m *machine) property(unit, name string) string {
	m.t.Helper()
	text, err := exec.Command("systemctl", "show", "--value", "-p", name, unit).Output()
	m.must(err)
	return strings.TrimSpace(string(text))
}

var errNotReady = errors.New("not ready")

// ready waits until a unit runs with another process than before, and its daemon says that it does its work.
func (m *machine) ready(unit, before string) (pid string) {
	m.t.Helper()
	m.await(unit+" is ready", func() error {
		pid = m.property(unit, "MainPID")
		state := m.property(unit, "ActiveState")
		if said := m.property(unit, "StatusText"); state != "active" || pid == before || said != "ready" {
			return fmt.Errorf("%w: %s, process %s, %q", errNotReady, state, pid, said)
		}
		return nil
	})
	return pid
}

// announced waits until the router has, or has not, the route that packets for the VIP take.
func (m *machine) announced(want bool) {
	m.t.Helper()
	m.await(fmt.Sprintf("announced is %t", want), func() error {
		routes, err := exec.Command("ip", "-n", "router", "route", "show", "198.51.100.10").Output()
		if err != nil {
			return err
		}
		if got := strings.Contains(string(routes), "via 10.60.0.10"); got != want {
			return fmt.Errorf("the router's route: %q", routes)
		}
		return nil
	})
}
