// Package report is what `ballast-lab bench report` writes: one file with the figures of a machine and what one must know of the machine to read them,
// and nothing that tells whose it is.
package report

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
)

// Machine is what figures depend on.
type Machine struct {
	Processor  Processor         `json:"processor"`
	MemoryMB   uint64            `json:"memory_mb"`
	Product    string            `json:"product,omitempty"` // maker and model, as the firmware says
	Kernel     string            `json:"kernel"`            // release and version of the build
	Parameters []string          `json:"kernel_parameters"` // those of the command line that are about speed
	Settings   map[string]string `json:"settings"`          // sysctls and the like, by path; empty: the machine has none
	Mitigation map[string]string `json:"mitigations"`       // vulnerability -> what the kernel does about it
}

// Processor is that of the machine.
type Processor struct {
	Model        string   `json:"model"`
	Architecture string   `json:"architecture"`
	CPUs         int      `json:"cpus"` // that the kernel schedules on
	Cores        int      `json:"cores,omitempty"`
	Sockets      int      `json:"sockets,omitempty"`
	Nodes        int      `json:"numa_nodes"`
	Caches       []string `json:"caches"` // of the first CPU
	Microcode    string   `json:"microcode,omitempty"`
	Virtual      bool     `json:"virtual"` // it says that a hypervisor is below
}

// parameters of the kernel's command line that are about speed. Others may name disks, hosts and passwords.
var parameters = []string{"amd_iommu", "amd_pstate", "default_hugepagesz", "hugepages", "hugepagesz", "idle", "intel_idle.max_cstate", "intel_iommu", "intel_pstate",
	"iommu", "isolcpus", "kpti", "l1tf", "mds", "mitigations", "nohz", "nohz_full", "nosmt", "nospectre_v2", "preempt", "processor.max_cstate", "pti", "rcu_nocbs",
	"retbleed", "spec_rstack_overflow", "spec_store_bypass_disable", "spectre_v2", "threadirqs", "transparent_hugepage", "tsx"}

// settings that figures depend on.
var settings = []string{
	"proc/sys/net/core/bpf_jit_enable", "proc/sys/net/core/bpf_jit_harden", "proc/sys/net/core/netdev_budget", "proc/sys/net/core/netdev_budget_usecs",
	"proc/sys/kernel/bpf_stats_enabled", "sys/kernel/mm/transparent_hugepage/enabled", "sys/devices/system/cpu/smt/control",
	"sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq",
	"sys/devices/system/cpu/intel_pstate/no_turbo", "sys/devices/system/cpu/cpufreq/boost", "sys/devices/system/clocksource/clocksource0/current_clocksource",
}

// ReadMachine reads what the kernel tells of this machine. root is that of the file system: os.DirFS("/").
func ReadMachine(root fs.FS) (m Machine, err error) {
	info, err := fs.ReadFile(root, "proc/cpuinfo")
	if err != nil {
		return m, fmt.Errorf("read the processor: %w", err)
	}
	m.Processor = readProcessor(root, string(info))
	m.MemoryMB = memory(line(root, "proc/meminfo")) / 1024
	m.Product = strings.TrimSpace(line(root, "sys/class/dmi/id/sys_vendor") + " " + line(root, "sys/class/dmi/id/product_name"))
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return m, fmt.Errorf("ask for the kernel: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(name.Release[:]) + " " + unix.ByteSliceToString(name.Version[:])
	m.Parameters = []string{}
	for _, word := range strings.Fields(line(root, "proc/cmdline")) {
		if key, _, _ := strings.Cut(word, "="); slices.Contains(parameters, key) {
			m.Parameters = append(m.Parameters, word)
		}
	}
	m.Settings = map[string]string{}
	for _, file := range settings {
		if value := line(root, file); value != "" {
			m.Settings["/"+file] = value
		}
	}
	m.Mitigation = map[string]string{}
	const folder = "sys/devices/system/cpu/vulnerabilities"
	entries, _ := fs.ReadDir(root, folder) // empty: this architecture has none
	for _, entry := range entries {
		m.Mitigation[entry.Name()] = line(root, path.Join(folder, entry.Name()))
	}
	return m, nil
}

// line is the first line of a file, empty if there is none.
func line(root fs.FS, file string) string {
	text, _ := fs.ReadFile(root, file)
	first, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(first)
}

// memory is the number of kB in "MemTotal: N kB".
func memory(text string) uint64 {
	fields := strings.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	number, _ := strconv.ParseUint(fields[1], 10, 64)
	return number
}

func readProcessor(root fs.FS, info string) Processor {
	p := Processor{Architecture: runtime.GOARCH, CPUs: runtime.NumCPU(), Caches: []string{}}
	sockets, cores := map[string]bool{}, map[string]bool{}
	socket := ""
	for text := range strings.Lines(info) {
		key, value, _ := strings.Cut(text, ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch key {
		case "model name":
			p.Model = value
		case "microcode":
			p.Microcode = value
		case "physical id":
			socket = value
			sockets[value] = true
		case "core id":
			cores[socket+"/"+value] = true
		case "flags":
			p.Virtual = p.Virtual || slices.Contains(strings.Fields(value), "hypervisor")
		}
	}
	p.Sockets, p.Cores = len(sockets), len(cores)
	nodes, _ := fs.Glob(root, "sys/devices/system/node/node[0-9]*")
	p.Nodes = max(1, len(nodes))
	caches, _ := fs.Glob(root, "sys/devices/system/cpu/cpu0/cache/index[0-9]*")
	for _, cache := range caches {
		p.Caches = append(p.Caches, fmt.Sprintf("L%s %s %s", line(root, cache+"/level"), line(root, cache+"/type"), line(root, cache+"/size")))
	}
	return p
}

// Card is a network card that the user has named, without its name and addresses.
type Card struct {
	Driver   string   `json:"driver"`
	Version  string   `json:"driver_version"`
	Firmware string   `json:"firmware,omitempty"`
	Model    string   `json:"model,omitempty"`    // vendor and device, of PCI
	LinkPCI  string   `json:"pci_link,omitempty"` // speed and lanes
	Mbps     int      `json:"mbps,omitempty"`     // of the wire
	Node     string   `json:"numa_node,omitempty"`
	MTU      int      `json:"mtu"`
	Receive  int      `json:"receive_queues"`
	Channels string   `json:"channels,omitempty"` // in use, and possible
	Rings    string   `json:"rings,omitempty"`    // receive and transmit, and possible
	Offloads []string `json:"offloads"`           // that are on
	Native   string   `json:"native_xdp"`         // yes, no or unknown
}

// ReadCard reads what the driver of a card tells.
func ReadCard(root fs.FS, name string) (c Card, err error) {
	device, err := netdev.ReadDevice(name)
	if err != nil {
		return c, err
	}
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return c, fmt.Errorf("open ethtool: %w", err)
	}
	defer tool.Close()
	c = Card{Driver: device.Driver, MTU: device.MTU, Receive: device.ReceiveQueues, Offloads: []string{}, Native: "unknown"}
	if device.XDPFeaturesKnown {
		c.Native = map[bool]string{true: "yes", false: "no"}[device.XDPFeatures&netdev.XDPBasic != 0]
	}
	for _, offload := range slices.Sorted(maps.Keys(device.Offloads)) {
		if device.Offloads[offload] {
			c.Offloads = append(c.Offloads, offload)
		}
	}
	if info, err := tool.DriverInfo(name); err == nil { // its bus address stays out
		c.Version, c.Firmware = info.Version, info.FwVersion
	}
	if channels, err := tool.GetChannels(name); err == nil {
		c.Channels = fmt.Sprintf("%d combined, %d rx, %d tx of %d, %d, %d", channels.CombinedCount, channels.RxCount, channels.TxCount, channels.MaxCombined, channels.MaxRx, channels.MaxTx)
	}
	if rings, err := tool.GetRing(name); err == nil {
		c.Rings = fmt.Sprintf("%d rx, %d tx of %d, %d", rings.RxPending, rings.TxPending, rings.RxMaxPending, rings.TxMaxPending)
	}
	folder := "sys/class/net/" + name
	c.Mbps, _ = strconv.Atoi(line(root, folder+"/speed"))
	c.Node = line(root, folder+"/device/numa_node")
	c.Model = strings.TrimSpace(line(root, folder+"/device/vendor") + " " + line(root, folder+"/device/device"))
	if speed := line(root, folder+"/device/current_link_speed"); speed != "" {
		c.LinkPCI = speed + " x" + line(root, folder+"/device/current_link_width")
	}
	return c, nil
}

// Root is this machine's file system.
func Root() fs.FS { return os.DirFS("/") }
