package migrate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// runMigrateL2 moves VIPs that the router finds on the segment, by the commands of docs/run/moving.md.
func runMigrateL2(run *scenario.Run) {
	what := setup("predecessor on the segment", vips4)
	what.Topology.Segment = true
	for _, one := range what.Services {
		one.Announce = model.VIPOff
	}
	run.Trial(what, func(t *world.Trial) {
		m := begin(t, run.Result, t.StartFormerProxy())
		m.in(func() {})
		m.out()
	})
}

// announce changes whether load balancers announce the VIPs.
func (m *move) announce(how model.VIPAnnouncement) {
	for _, one := range m.Fleet.Services {
		one.Announce = how
	}
	m.Rollout.Apply()
}

// beside has load balancers want VIPs that the former has: they leave them to it, and say so.
func (m *move) beside() {
	m.announce(model.VIPAuto)
	for _, lb := range m.lbs {
		m.says(lb, len(m.Fleet.Services), fmt.Sprintf("(%s, predecessor of service ", m.former.Address()))
	}
	m.more(settled)()
	m.Expect(m.owned() == 0, "load balancers have taken %d VIPs that the former has", m.owned())
}

// says waits until a load balancer has as many problems that contain a text.
func (m *move) says(lb string, count int, text string) {
	await.Promised(m.Context, within, fmt.Sprintf("%s has %d problems: %s", lb, count, text), func() error {
		problems, err := m.Monitor.Problems(lb)
		have := slices.DeleteFunc(slices.Clone(problems), func(problem string) bool { return !strings.Contains(problem, text) })
		if err == nil && len(have) != count {
			err = fmt.Errorf("it has %q", problems)
		}
		return err
	})
}

// owned are how many VIPs load balancers own.
func (m *move) owned() (vips int) {
	for _, lb := range m.lbs {
		for _, vip := range script.Must(m.Monitor.L2(lb)).VIPs {
			if vip.Owned {
				vips++
			}
		}
	}
	return vips
}

// take has the former give the VIPs up, and waits until load balancers have shared them: a local table does not follow.
func (m *move) take() {
	m.former.GiveUp()
	await.Promised(m.Context, within, "load balancers own all VIPs, each some", func() error {
		for _, lb := range m.lbs {
			status, err := m.Monitor.L2(lb)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(status.VIPs, func(vip api.L2VIP) bool { return vip.Owned }) {
				return fmt.Errorf("%s owns none: %+v", lb, status.VIPs)
			}
		}
		if have := m.owned(); have != len(m.Fleet.Services) {
			return fmt.Errorf("they own %d", have)
		}
		return nil
	})
}

// giveBack has the former take the VIPs. Until it announces them, the router sends to load balancers, which say so, and it goes on to the former.
func (m *move) giveBack() {
	m.former.TakeBack()
	m.announce(model.VIPOff)
	count := func() uint64 { return script.Must(m.Counters.Verdicts(m.lbs...))["forwarded_to_predecessor"] }
	await.Promised(m.Context, within, "a load balancer says that packets still arrive", func() error {
		for _, lb := range m.lbs {
			problems, err := m.Monitor.Problems(lb)
			if err != nil || slices.ContainsFunc(problems, func(problem string) bool { return strings.Contains(problem, "packets still come here") }) {
				return err
			}
		}
		return fmt.Errorf("none of %v does", m.lbs)
	})
	m.former.Announce()
	await.Promised(m.Context, within, "no packet goes on to the predecessor", func() error {
		before := count()
		m.more(settled)()
		if after := count(); after != before {
			return fmt.Errorf("%d did meanwhile", after-before)
		}
		return nil
	})
	m.Expect(m.owned() == 0, "load balancers own %d VIPs that were given up", m.owned())
}
