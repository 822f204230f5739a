// Package gateways keeps the default route of a network function: it leads to the load balancers that answer BFD (machine/gateways).
package gateways

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/bfd"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/machine/gateways"
)

// checkPeriod is how often the route is looked at, which others may have changed.
const checkPeriod = time.Second

// Options of New.
type Options struct {
	Table            uint32 // of the route; 0: there is none
	RunDir, Instance string
	Log              *slog.Logger
}

// Gateways are the load balancers of this host's functions. Its methods are safe for concurrent use.
type Gateways struct {
	o        Options
	families []*family
}

// family is one of addresses.
type family struct {
	route  netdev.GatewayRoute
	prober *bfd.Prober
	log    *slog.Logger

	mutex   sync.Mutex
	machine gateways.Machine
	own     netip.Addr // of this host, which load balancers know; invalid: it has none of this family
	link    netdev.Link
	problem string       // with the route, or in sending
	set     []netip.Addr // in the route
	checked time.Time
}

// New opens what it takes to ask load balancers. The route of an earlier process stays until it is known who lives; that in another table goes.
func New(o Options) (*Gateways, error) {
	g := &Gateways{o: o}
	if kept, err := keptTable(o.RunDir, o.Instance); err != nil {
		return nil, err
	} else if kept != 0 && kept != o.Table {
		if err := Leave(o.RunDir, o.Instance); err != nil {
			return nil, err
		}
	}
	if o.Table == 0 {
		return g, nil
	}
	for _, ipv6 := range []bool{false, true} {
		prober, err := bfd.NewProber(ipv6)
		if err != nil {
			return nil, errors.Join(err, g.Close())
		}
		g.families = append(g.families, &family{route: netdev.GatewayRoute{Table: int(o.Table), IPv6: ipv6}, prober: prober, log: o.Log})
	}
	path := tablePath(o.RunDir, o.Instance)
	if err := os.WriteFile(path, fmt.Appendln(nil, o.Table), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("keep the number of the gateway table: %w", err), g.Close())
	}
	return g, nil
}

// Close leaves the route.
func (g *Gateways) Close() (err error) {
	for _, f := range g.families {
		err = errors.Join(err, f.prober.Close())
	}
	return err
}

// tablePath is beside the socket of the instance.
func tablePath(runDir, instance string) string {
	return filepath.Join(runDir, instance, "gateway-table")
}

// keptTable is that of an earlier process, 0: it had none.
func keptTable(runDir, instance string) (uint32, error) {
	text, err := os.ReadFile(tablePath(runDir, instance))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the number of the gateway table: %w", err)
	}
	table, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%s: %w: delete it, and the default routes of protocol 98", tablePath(runDir, instance), err)
	}
	return uint32(table), nil
}

// Leave removes the route that an instance has left, if any.
func Leave(runDir, instance string) error {
	table, err := keptTable(runDir, instance)
	if err != nil || table == 0 {
		return err
	}
	for _, ipv6 := range []bool{false, true} {
		err = errors.Join(err, netdev.GatewayRoute{Table: int(table), IPv6: ipv6}.Remove())
	}
	return errors.Join(err, os.Remove(tablePath(runDir, instance)))
}

// Set takes the addresses by which services name this host as a network function, and those of load balancers. Those on a link of this host's are its
// gateways.
func (g *Gateways) Set(own, balancers []netip.Addr) {
	for _, f := range g.families {
		f.mutex.Lock()
		f.take(own, balancers)
		f.mutex.Unlock()
	}
}

func (f *family) take(own, balancers []netip.Addr) {
	f.own = netip.Addr{}
	var err error
	for _, address := range own {
		if address.Is6() != f.route.IPv6 {
			continue
		}
		if f.link, err = netdev.LinkOf(address); err == nil {
			f.own = address
			break
		}
	}
	if !f.own.IsValid() {
		f.note(err)
		return
	}
	var near []netip.Addr
	for _, address := range balancers {
		if f.link.Prefix.Contains(address) && !slices.Contains(own, address) {
			near = append(near, address)
		}
	}
	f.machine.Follow(near)
}

// Run asks until ctx ends. The route stays as it is then.
func (g *Gateways) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, f := range g.families {
		running.Go(func() { f.run(ctx) })
	}
	running.Wait()
}

// answer is a packet that came in.
type answer struct {
	from    netip.Addr
	ifindex int
	bfd.Packet
}

func (f *family) run(ctx context.Context) {
	defer f.prober.Close()
	answers := make(chan answer, 256)
	go f.receive(ctx, answers)
	timer := time.NewTimer(gateways.Interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-answers:
			f.hear(a)
		case <-timer.C:
			for range len(answers) { // before anybody is judged
				f.hear(<-answers)
			}
			timer.Reset(gateways.Interval)
			f.step(time.Now())
		}
	}
}

func (f *family) receive(ctx context.Context, answers chan<- answer) {
	for {
		from, ifindex, packet, err := f.prober.Receive()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			f.log.Error("no more BFD is received", "error", err)
			return
		}
		select {
		case answers <- answer{from, ifindex, packet}:
		case <-ctx.Done():
			return
		}
	}
}

func (f *family) hear(a answer) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if a.ifindex == f.link.Ifindex {
		f.machine.Answer(a.from, gateways.Packet{State: gateways.State(a.State), Mine: a.Mine, Yours: a.Yours})
	}
}

// step asks all load balancers again, and has the route follow what they have answered.
func (f *family) step(now time.Time) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if !f.own.IsValid() { // no service, or no more: what there is stays, as connections do
		return
	}
	probes := f.machine.Step(now, rand.Uint32)
	use := f.machine.Use()
	var err error
	if len(use) > 0 && (!slices.Equal(use, f.set) || now.Sub(f.checked) >= checkPeriod) {
		var changed bool
		if changed, err = f.route.Set(f.link.Ifindex, use); err == nil {
			f.set, f.checked = slices.Clone(use), now
		}
		if changed {
			f.log.Info("the gateways of this network function are others", "table", f.route.Table, "gateways", use)
		}
	}
	for _, p := range probes {
		err = errors.Join(err, f.prober.Send(f.own, p.To, f.link.Ifindex, bfd.Packet{State: uint8(p.State), Multiplier: gateways.Multiplier, Mine: p.Mine, Yours: p.Yours,
			IntervalUS: uint32(gateways.Interval.Microseconds())}))
	}
	f.note(err)
}

// note remembers what is wrong, nil: nothing, and logs what is new.
func (f *family) note(err error) {
	problem := ""
	if err != nil {
		problem = "gateways: " + err.Error()
	}
	if problem != "" && problem != f.problem {
		f.log.Error(problem)
	}
	f.problem = problem
}

// Status lists the load balancers.
func (g *Gateways) Status(now time.Time) (all []api.Gateway) {
	for _, f := range g.families {
		f.mutex.Lock()
		for _, s := range f.machine.Status() {
			one := api.Gateway{Address: s.Address, Table: f.route.Table, Answers: s.Answers, Used: s.Used}
			if !s.Heard.IsZero() {
				age := api.InSeconds(now.Sub(s.Heard))
				one.Heard = &age
			}
			all = append(all, one)
		}
		f.mutex.Unlock()
	}
	return all
}

var (
	answeringMetric = prometheus.NewDesc("ballast_agent_gateways_answering", "Load balancers on the link of this network function that answer its BFD (--gateway-table).",
		[]string{"family"}, nil)
	routedMetric = prometheus.NewDesc("ballast_agent_gateways_routed", "Load balancers that the default route of this network function leads to: those that answer or, if none does, those that were the last to.",
		[]string{"family"}, nil)
)

// Collect exports how many load balancers there are for each family of which services name this host as a network function.
func (g *Gateways) Collect(out chan<- prometheus.Metric) {
	for _, f := range g.families {
		f.mutex.Lock()
		if f.own.IsValid() {
			answering := 0
			for _, s := range f.machine.Status() {
				if s.Answers {
					answering++
				}
			}
			name := map[bool]string{false: "ipv4", true: "ipv6"}[f.route.IPv6]
			out <- prometheus.MustNewConstMetric(answeringMetric, prometheus.GaugeValue, float64(answering), name)
			out <- prometheus.MustNewConstMetric(routedMetric, prometheus.GaugeValue, float64(len(f.set)), name)
		}
		f.mutex.Unlock()
	}
}

// Problems are why the route is not as it should be.
func (g *Gateways) Problems() (problems []string) {
	for _, f := range g.families {
		f.mutex.Lock()
		if f.problem != "" {
			problems = append(problems, f.problem)
		}
		all := f.machine.Status()
		switch answers := slices.ContainsFunc(all, func(s gateways.Status) bool { return s.Answers }); {
		case !f.own.IsValid() || answers:
		case len(all) == 0:
			problems = append(problems, fmt.Sprintf("gateways: no load balancer is known on the link of %s: name them in the file under tunnels_from, or connect them to the controllers", f.own))
		case len(f.machine.Use()) == 0:
			problems = append(problems, fmt.Sprintf("gateways: none of %s answers BFD: let UDP port 3784 through; the default route of table %d is as an earlier process left it, or there is none",
				named(all), f.route.Table))
		default:
			problems = append(problems, fmt.Sprintf("gateways: none of %s answers BFD: the default route of table %d stays as it was", named(all), f.route.Table))
		}
		f.mutex.Unlock()
	}
	return problems
}

func named(all []gateways.Status) string {
	var names []string
	for _, s := range all {
		names = append(names, s.Address.String())
	}
	return strings.Join(names, ", ")
}
