package comparison

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// A Contender is what stands between the router and the servers, set up as its own documents say.
type Contender struct {
	Name, About string
	Balancers   int                          // behind the router; 0: the router sends to the servers
	Programs    map[string]string            // that it needs -> the package of Debian that has it
	Possible    func() error                 // why this machine cannot run it; nil: it can
	Checks      bool                         // it checks the servers' health itself; else a checker beside it does, as fast
	Setup       func() world.Setup           // beyond the network that all have; nil: nothing
	Version     func(binary string) []string // the command that prints it; nil: the kernel's
	New         func(t *world.Trial) Balancing
}

// State is what a contender is to do with a server.
type State int

// States. A server that is absent may have connections from a time when it was not.
const (
	Absent State = iota
	Active
	Draining
)

// Balancing is a contender in a network. Balancers and servers are numbered from 1. What goes wrong ends the script.
type Balancing interface {
	Start(pool []State)         // all balancers; pool[i-1] is what to do with server i
	Change(pool []State)        // at all balancers that are there
	Kill(i int)                 // as a power cut would: the links of the balancer are down already
	Boot(i int)                 // with nothing but its files; its links are up
	Restart(i int)              // its service, as `systemctl restart` does
	Reload(i int)               // or upgrade it, in the way that keeps most
	Processes() []*host.Process // that forward, for their CPU time; the kernel has none
}

const (
	vip     = scenario.VIP4
	servers = 6
	first   = 5 // servers that are in the pool at first
)

var target = netip.AddrPortFrom(netip.MustParseAddr(vip), 80)

// Contenders are all, in the order of the table.
func Contenders() []Contender {
	list := []Contender{direct(), haproxy(), nginx(), kubeProxy(), jhash(), ipvs("mh"), ipvs("wlc")}
	return append(list, ours()...)
}

// missing is why a contender cannot run here: what it needs, and where that is to be had. nil: it can.
func (c *Contender) missing() error {
	var errs []error
	for program, from := range c.Programs {
		found := false
		for _, path := range []string{program, "/usr/sbin/" + program} {
			_, err := exec.LookPath(path)
			_, library := os.Stat(path)
			found = found || err == nil || filepath.IsAbs(program) && library == nil
		}
		if !found {
			errs = append(errs, fmt.Errorf("%s is not installed: apt install %s", filepath.Base(program), from))
		}
	}
	if len(errs) == 0 && c.Possible != nil {
		errs = append(errs, c.Possible())
	}
	return errors.Join(errs...)
}

// version is what the program says of itself, in one line.
func (c *Contender) version(ctx context.Context, binary string) string {
	if c.Version == nil {
		return kernel()
	}
	line := c.Version(binary)
	output, err := exec.CommandContext(ctx, line[0], line[1:]...).CombinedOutput()
	text, _, _ := strings.Cut(string(bytes.TrimSpace(output)), "\n")
	if err != nil {
		return fmt.Sprintf("%s: %v", line[0], err)
	}
	return text
}

// setup is a contender's trial.
func (c *Contender) setup() world.Setup {
	what := world.Setup{NoDaemons: true, Services: []*fleet.Service{scenario.HashService(vip)}}
	if c.Setup != nil {
		what = c.Setup()
	}
	what.Name, what.Cuts = c.Name, true
	what.Topology.LBs, what.Topology.Servers = c.Balancers, scenario.Servers(servers, nil)
	what.Members = nil
	for i := 1; i <= first; i++ {
		what.Members = append(what.Members, i)
	}
	return what
}

func serverAddress(t *world.Trial, i int) netip.Addr { return t.Network.ServerAddress(i, false) }

// with are the servers that are in a state.
func with(pool []State, state State) (numbers []int) {
	for i, is := range pool {
		if is == state {
			numbers = append(numbers, i+1)
		}
	}
	return numbers
}

// ownVIP gives balancers the VIP, which programs of theirs take connections at.
func ownVIP(t *world.Trial) {
	for i := 1; i <= t.Network.LBs; i++ {
		script.Check(t.Lab.Space(world.LBName(i)).AddAddress("lo", netip.PrefixFrom(target.Addr(), 32)))
	}
}

// pause waits in the real time that events take.
func pause(ctx context.Context, length time.Duration) {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		script.Check(context.Cause(ctx))
	}
}
