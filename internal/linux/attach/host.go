// A host that is a load balancer and a server: both roles share the XDP hook of a device.
package attach

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/pin"
)

// Host is what a load balancer and an agent of one network namespace share (bpf/lb/send/this_host.h): the load balancer's program has the hook,
// and the agent's runs behind it. Whoever comes second finds the other by its pins: an agent puts its program behind, a load balancer takes the
// agent's link over. Whoever leaves takes its program out; a load balancer gives the link back. Links change their program at once, so that no
// packet meets a device without.
//
// An agent claims a device that it is behind on: its program is pinned as behind-DEVICE-INSTANCE. What one process does to a device keeps
// others waiting.
type Host struct {
	// Agent is an array of one program. Without a directory it is this process's own, and empty.
	Agent *ebpf.Map
	dir   string
}

// AgentProgram is what the array is called, in BPF, too.
const AgentProgram = "agent_program"

// OpenHost finds what the instances of the calling thread's network namespace share, or makes it. dir is an instance's directory in a BPF
// file system; empty: nothing is shared.
func OpenHost(dir string) (*Host, error) {
	h := &Host{}
	var err error
	if dir != "" {
		if h.dir, err = hostDir(dir); err != nil {
			return nil, err
		}
		if err := os.Mkdir(h.dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("make the directory that load balancers and agents share: %w", err)
		}
		if h.Agent, err = ebpf.LoadPinnedMap(h.pin(), nil); err == nil {
			return h, nil
		}
	}
	h.Agent, err = ebpf.NewMap(&ebpf.MapSpec{Name: AgentProgram, Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err == nil && dir != "" {
		if err = h.Agent.Pin(h.pin()); errors.Is(err, os.ErrExist) { // the other role was faster
			h.Agent.Close()
			h.Agent, err = ebpf.LoadPinnedMap(h.pin(), nil)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("share devices with the other role: %w", err)
	}
	return h, nil
}

// hostDir is the directory that an instance shares with those of the calling thread's network namespace.
func hostDir(dir string) (string, error) {
	cookie, err := namespaceCookie()
	return filepath.Join(filepath.Dir(dir), pin.HostPrefix+strconv.FormatUint(cookie, 10)), err
}

// namespaceCookie is a number that no other network namespace of this machine has, or will have until it is started again.
func namespaceCookie() (uint64, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(socket)
	cookie, err := unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read the cookie of this network namespace: %w", err)
	}
	return cookie, nil
}

func (h *Host) pin() string { return filepath.Join(h.dir, AgentProgram) }

// Close lets go of the array. It stays where it is pinned.
func (h *Host) Close() error {
	if h == nil {
		return nil
	}
	return h.Agent.Close()
}

// Repin pins the array again if it is not where it was pinned. Claims follow: see RunsBehind.
func (h *Host) Repin() error {
	if h.dir == "" {
		return nil
	}
	if _, err := os.Lstat(h.pin()); !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := pin.EnsureBPFFS(filepath.Dir(h.dir)); err != nil {
		return err
	}
	if err := os.Mkdir(h.dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make the directory that load balancers and agents share again: %w", err)
	}
	second, err := h.Agent.Clone() // the first believes that it still is pinned
	if err != nil {
		return fmt.Errorf("pin %s again: %w", h.pin(), err)
	}
	defer second.Close()
	if err := second.Pin(h.pin()); err != nil && !errors.Is(err, os.ErrExist) { // the other role was faster
		return fmt.Errorf("pin %s again: %w", h.pin(), err)
	}
	return nil
}

// lock keeps other processes from the devices until unlock is called.
func (h *Host) lock() (unlock func(), err error) {
	dir, err := os.Open(h.dir)
	if err != nil {
		return nil, fmt.Errorf("share devices with the other role: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		dir.Close()
		return nil, fmt.Errorf("wait for the other role: %w", err)
	}
	return func() { dir.Close() }, nil
}

// InFront attaches a load balancer's program, as XDP does, also to a device that an agent of this host has the hook of.
func (h *Host) InFront(p *pin.Instance, program *ebpf.Program, device *net.Interface, mode XDPMode) (XDPMode, error) {
	if h.dir == "" {
		return XDP(p, program, device, mode)
	}
	unlock, err := h.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	got, err := XDP(p, program, device, mode)
	id, runs, busy := inTheWay(err, device, mode)
	if !busy {
		return got, err
	}
	path, agents := h.agentsLink(p.Dir, device.Index, id)
	if agents == nil {
		return "", err
	}
	defer agents.Close()
	return runs, h.takeOver(p, program, device.Index, path, agents)
}

// takeOver puts a load balancer's program into the link of an agent, which runs behind it from now on.
func (h *Host) takeOver(p *pin.Instance, program *ebpf.Program, ifindex int, path string, agents link.Link) error {
	_, id := pin.LinkIsOn(agents)
	instance := filepath.Base(filepath.Dir(path))
	if !h.isCalledBy(uint32(id)) { // else an earlier process was killed here
		behind, err := ebpf.NewProgramFromID(id)
		if err != nil {
			return fmt.Errorf("find the agent's program: %w", err)
		}
		defer behind.Close()
		if err := h.enter(behind, ifindex, instance); err != nil {
			return err
		}
	}
	if err := agents.Update(program); err != nil {
		err = fmt.Errorf("put the load balancer's program before that of agent %s: %w", instance, err)
		return errors.Join(err, leave(filepath.Dir(path), func(at int) bool { return at != ifindex }))
	}
	if err := os.Rename(path, pin.LinkPath(p.Dir, pin.HookXDP, ifindex)); err != nil {
		return fmt.Errorf("take over the link of agent %s: %w", instance, err)
	}
	ours, err := p.LinkOn(pin.HookXDP, ifindex)
	if err != nil {
		return err
	}
	return p.Hold(pin.HookXDP, ifindex, ours)
}

// Behind attaches an agent's program, as XDP does, also to a device that a load balancer of this host has the hook of.
func (h *Host) Behind(p *pin.Instance, program *ebpf.Program, device *net.Interface, mode XDPMode) (XDPMode, error) {
	if h.dir == "" {
		return XDP(p, program, device, mode)
	}
	unlock, err := h.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	if id, _, there := XDPOn(device.Index); !there || !h.isCalledBy(id) { // a load balancer that was there has gone without a word
		if err := Leave(p, device.Index); err != nil {
			return "", err
		}
	}
	got, err := XDP(p, program, device, mode)
	id, runs, busy := inTheWay(err, device, mode)
	if !busy || !h.isCalledBy(id) {
		return got, err
	}
	return runs, h.enter(program, device.Index, filepath.Base(p.Dir))
}

// enter makes an agent's program run behind the load balancer's, on a device. There is room for one agent.
func (h *Host) enter(program *ebpf.Program, ifindex int, instance string) error {
	if other := h.other(instance); other != "" {
		return fmt.Errorf("run behind the load balancer's program: agent %s does: `ballast agent --detach --instance %[1]s` takes it out once its daemon has ended", other)
	}
	if err := errors.Join(h.Agent.Put(uint32(0), program), h.claim(program, ifindex, instance)); err != nil {
		return fmt.Errorf("run the program of agent %s behind the load balancer's: %w", instance, err)
	}
	return nil
}

// other names an agent with claims that is not instance, empty: there is none.
func (h *Host) other(instance string) string {
	for _, claim := range pin.ClaimsIn(h.dir) {
		if claim.Instance != instance {
			return claim.Instance
		}
	}
	return ""
}

// inTheWay finds the program that kept another from being attached, and its mode. busy: there is one, of a mode that would do.
func inTheWay(attached error, device *net.Interface, mode XDPMode) (id uint32, runs XDPMode, busy bool) {
	if !errors.Is(attached, unix.EBUSY) {
		return 0, "", false
	}
	id, runs, there := XDPOn(device.Index)
	return id, runs, there && (runs == mode || mode != XDPNative && mode != XDPGeneric)
}

// agentsLink finds the pinned link of an agent's program that runs on a device; nil: it is no agent's.
func (h *Host) agentsLink(dir string, ifindex int, id uint32) (path string, found link.Link) {
	pins, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "*", filepath.Base(pin.LinkPath("", pin.HookXDP, ifindex))))
	for _, path := range pins {
		other := filepath.Dir(path)
		name, _ := ProgramName(id)
		if other == dir || pin.Role(other) != "agent" || name != "server_xdp" && !h.isCalledBy(id) {
			continue
		}
		l, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			continue
		}
		if on, runs := pin.LinkIsOn(l); on == ifindex && uint32(runs) == id {
			return path, l
		}
		l.Close()
	}
	return "", nil
}

// isCalledBy tells whether a program hands packets to what is in the array.
func (h *Host) isCalledBy(id uint32) bool { return uses(ebpf.ProgramID(id), h.Agent) }

func uses(id ebpf.ProgramID, m *ebpf.Map) bool {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return false
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return false
	}
	maps, _ := info.MapIDs()
	of, err := m.Info()
	if err != nil {
		return false
	}
	wanted, _ := of.ID()
	return slices.Contains(maps, wanted)
}

// claim notes, for who comes and goes, that a program runs behind another one.
func (h *Host) claim(program *ebpf.Program, ifindex int, instance string) error {
	at := pin.Claim(h.dir, ifindex, instance)
	if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	second, err := program.Clone() // it may be pinned for another device
	if err != nil {
		return err
	}
	defer second.Close()
	return second.Pin(at)
}

// RunsBehind is nil if an instance's program runs on a device behind the load balancer's, and claims that; else it says why not.
func (h *Host) RunsBehind(p *pin.Instance, ifindex int, program *ebpf.Program) error {
	var have uint32
	id, _, there := XDPOn(ifindex)
	if !there || !h.isCalledBy(id) {
		return fmt.Errorf("%s of %s: no program of a load balancer of this host is there", pin.HookXDP, pin.DeviceName(ifindex))
	}
	if err := h.Agent.Lookup(uint32(0), &have); err != nil {
		return fmt.Errorf("%s of %s: no agent's program runs behind the load balancer's", pin.HookXDP, pin.DeviceName(ifindex))
	}
	if _, err := os.Lstat(pin.Claim(h.dir, ifindex, filepath.Base(p.Dir))); err != nil {
		return fmt.Errorf("%s of %s: the claim of this agent is gone: %w", pin.HookXDP, pin.DeviceName(ifindex), err)
	}
	return pin.SameProgram(pin.HookXDP, ifindex, ebpf.ProgramID(have), program)
}

// Lacks is why a server on this host gets no packets that come in by one of the devices, empty: an agent's program runs there.
func (h *Host) Lacks(devices []int) string {
	var id uint32
	const remedy = "`ballast agent` on this host takes them, with another --instance and the same --run-dir"
	if err := h.Agent.Lookup(uint32(0), &id); err != nil {
		return "it is this host, and no agent runs here: " + remedy
	}
	claims := pin.ClaimsIn(h.dir)
	for _, ifindex := range devices {
		if !slices.ContainsFunc(claims, func(c pin.Claimed) bool { return c.Ifindex == ifindex }) {
			return fmt.Sprintf("it is this host, and no agent runs on %s: name that with its --interface", pin.DeviceName(ifindex))
		}
	}
	return ""
}

// Leave ends what an agent's program does behind the load balancer's on a device.
func Leave(p *pin.Instance, ifindex int) error {
	return leave(p.Dir, func(at int) bool { return at != ifindex })
}

// leave removes the claims of an agent but for those to keep, and its program where none is left.
func leave(dir string, keep func(ifindex int) bool) error {
	hosts := map[string]bool{}
	for _, claim := range pin.Claims(dir) {
		if keep(claim.Ifindex) {
			hosts[claim.Host] = true
			continue
		}
		if err := os.Remove(claim.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("leave a load balancer's device: %w", err)
		}
		if !hosts[claim.Host] {
			hosts[claim.Host] = false
		}
	}
	for host, kept := range hosts {
		if kept {
			continue
		}
		array, err := ebpf.LoadPinnedMap(filepath.Join(host, AgentProgram), nil)
		if err != nil {
			return fmt.Errorf("leave a load balancer's device: %w", err)
		}
		err = array.Delete(uint32(0))
		array.Close()
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("leave a load balancer's device: %w", err)
		}
	}
	return nil
}

// giveBackPin lets the agent behind a load balancer's program have the hook of a device again, if the pin is of a link to one. Else nothing
// happens.
func giveBackPin(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return nil // it is no link, or gone
	}
	defer l.Close()
	ifindex, id := pin.LinkIsOn(l)
	if path != pin.LinkPath(filepath.Dir(path), pin.HookXDP, ifindex) {
		return nil
	}
	hosts, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(path)), pin.HostPrefix+"*"))
	for _, host := range hosts {
		claims := slices.DeleteFunc(pin.ClaimsIn(host), func(c pin.Claimed) bool { return c.Ifindex != ifindex })
		if len(claims) == 0 {
			continue
		}
		array, err := ebpf.LoadPinnedMap(filepath.Join(host, AgentProgram), nil)
		if err != nil {
			continue
		}
		of := uses(id, array)
		array.Close()
		if !of {
			continue
		}
		return giveTo(&Host{dir: host}, l, path, claims[0])
	}
	return nil
}

func giveTo(h *Host, l link.Link, path string, claim pin.Claimed) error {
	unlock, err := h.lock()
	if err != nil {
		return err
	}
	defer unlock()
	program, err := ebpf.LoadPinnedProgram(claim.Path, nil)
	if err != nil {
		return fmt.Errorf("give the device back to its agent: %w", err)
	}
	defer program.Close()
	to := pin.LinkPath(filepath.Join(filepath.Dir(h.dir), claim.Instance), pin.HookXDP, claim.Ifindex)
	if err := l.Update(program); err != nil {
		return fmt.Errorf("give the device back to agent %s: %w", claim.Instance, err)
	}
	if err := os.Rename(path, to); err != nil && !errors.Is(err, os.ErrNotExist) { // the agent has gone without a word
		return fmt.Errorf("give the link back to agent %s: %w", claim.Instance, err)
	}
	return os.Remove(claim.Path)
}
