// Package progtest is what tests of several programs share: namespaces, wires, an agent's data path, both ways to attach at tc.
package progtest

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// Deadline is how long tests wait for what has to come.
const Deadline = 20 * time.Second

var spaces atomic.Int32

// NewSpace makes a network namespace that goes with the test.
func NewSpace(t *testing.T, role string) *netspace.Space {
	t.Helper()
	space, err := netspace.Create(fmt.Sprintf("ballast-agt-%d-%d%s", os.Getpid(), spaces.Add(1), role))
	Check(t, err)
	t.Cleanup(func() {
		space.Close()
		Check(t, netspace.Remove(space.Name))
	})
	return space
}

// Connect joins two spaces by a wire of its own subnet.
func Connect(t *testing.T, a *netspace.Space, nameA string, hostA int, b *netspace.Space, nameB string, hostB, subnet, mtu int) {
	t.Helper()
	end := func(space *netspace.Space, name string, host int) netspace.End {
		return netspace.End{Space: space, Interface: name, MTU: mtu, Addresses: Prefixes(
			fmt.Sprintf("10.%d.0.%d/24", subnet, host), fmt.Sprintf("fd%02d::%d/64", subnet, host))}
	}
	Check(t, netspace.Connect(end(a, nameA, hostA), end(b, nameB, hostB)))
}

func Prefixes(list ...string) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// Pins makes a BPF file system that goes with the test, and returns the directory of an instance there.
func Pins(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ballast-agt-")
	Check(t, err)
	Check(t, pin.EnsureBPFFS(dir))
	t.Cleanup(func() {
		Check(t, attach.Detach(dir+"/test"))
		Check(t, pin.RemoveBPFFS(dir))
		Check(t, os.Remove(dir))
	})
	return dir + "/test"
}

// PinnedWord reads the first value of an array of words that is pinned.
func PinnedWord(t *testing.T, path string) (word uint64) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(path, nil)
	Check(t, err)
	defer m.Close()
	Check(t, m.Lookup(uint32(0), &word))
	return word
}

// FirstOf is the first element of the array that a program uses under a name.
func FirstOf(t *testing.T, program uint32, name string) (value []byte) {
	t.Helper()
	uses, err := ebpf.NewProgramFromID(ebpf.ProgramID(program))
	Check(t, err)
	defer uses.Close()
	info, err := uses.Info()
	Check(t, err)
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		Check(t, err)
		defer m.Close()
		about, err := m.Info()
		Check(t, err)
		if about.Name == name {
			value, err = m.LookupBytes(uint32(0))
			Check(t, err)
			return value
		}
	}
	t.Fatalf("program %d uses no map %s", program, name)
	return nil
}

// Attach starts an agent's data path on eth0 of a space. It ends with the test.
func Attach(t *testing.T, space *netspace.Space, dir string, mode attach.XDPMode, fleet *model.Fleet) *server.Server {
	t.Helper()
	agent, err := server.Open(dir, server.Limits{})
	Check(t, err)
	t.Cleanup(func() { agent.Close() })
	Publish(t, agent, fleet)
	Check(t, space.Do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		_, err = agent.Attach(device, mode)
		return err
	}))
	return agent
}

// Publish makes an agent serve all services of a fleet.
func Publish(t *testing.T, agent *server.Server, fleet *model.Fleet) {
	t.Helper()
	wanted, err := plan.NewAgent(fleet, func(*model.Server) bool { return true })
	Check(t, err)
	wanted.Place(agent.Served())
	_, err = agent.Serve(wanted.Served)
	Check(t, err)
}

// Count returns how many packets an agent has counted under a name.
func Count(t *testing.T, agent *server.Server, name string) uint64 {
	t.Helper()
	counters, err := agent.Counters()
	Check(t, err)
	traffic, ok := counters[name]
	if !ok {
		t.Fatalf("no counter %s in %v", name, slices.Sorted(maps.Keys(counters)))
	}
	return traffic.Packets
}

// Netstat adds up the kernel's counters of spaces by name.
func Netstat(t *testing.T, spaces []*netspace.Space, names ...string) map[string]int {
	t.Helper()
	sum := map[string]int{}
	for _, space := range spaces {
		for _, file := range []string{"netstat", "snmp"} {
			content, err := space.ReadFile("/proc/thread-self/net/" + file)
			Check(t, err)
			lines := strings.Split(string(content), "\n")
			for i := 0; i+1 < len(lines); i += 2 {
				keys, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
				for j, key := range keys {
					if slices.Contains(names, key) {
						n, _ := strconv.Atoi(values[j])
						sum[key] += n
					}
				}
			}
		}
	}
	return sum
}

// Rejects are what kernels count when they do not believe a timestamp.
func Rejects(t *testing.T, spaces ...*netspace.Space) map[string]int {
	t.Helper()
	return Netstat(t, spaces, "PAWSActive", "PAWSEstab", "PAWSOldAck", "PAWSTimewait", "TSEcrRejected", "TCPTSReorder")
}

// Htons is a number in network order.
func Htons(v uint16) uint16 { return v<<8 | v>>8 }

// Check fails the test if there is an error.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
