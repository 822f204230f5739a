// sources: the DNS, Consul or a file names the servers, and fails.
package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// Implementation constants.
const (
	heardMax = 75 * time.Second // until what a source says is so: the longest time between two questions, and some more
	goneMax  = 3 * time.Minute  // until a server that is named no more is removed
)

// namer names servers, and fails in its ways.
type namer interface {
	// name makes these the servers, and the namer well again.
	name(servers ...netip.Addr)
	// settings are those of the service, for `ballast ctl service set`, once it has named servers.
	settings() []string
	// faults are ways to fail, and what is said of each.
	faults() []fault
}

type fault struct {
	what string
	do   func()
	says string
}

func runSources(run *scenario.Run) {
	for _, kind := range []struct {
		name string
		of   func(*world.Trial) namer
	}{{"dns", newDNS}, {"consul", newConsul}, {"file", newFile}} {
		run.Trial(world.Setup{
			Name: kind.name, Services: []*fleet.Service{scenario.CookieService(scenario.VIP4)},
			Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 4), Management: true, Controllers: 2, EtcdMembers: 1},
		}, func(t *world.Trial) { (&sourced{t, kind.of(t)}).run(kind.name == "dns") })
	}
}

// sourced is the series of events with one namer.
type sourced struct {
	*world.Trial
	namer namer
}

func (s *sourced) run(whole bool) {
	running := scenario.Steady(s.Trial)
	steps := []world.Step{
		{What: "the source takes over a list", Do: func() {
			s.name(1, 2, 3, 4)
			script.Must(s.Operator.Ctl(append([]string{"service", "set", "web", "--yes"}, s.namer.settings()...)...))
			s.awaitSaid("")
			s.awaitServers("1 active, 2 active, 3 active, 4 active")
		}},
		{What: "half of the servers are left out", Do: func() {
			s.name(2, 3)
			s.awaitServers("1 draining, 2 active, 3 active, 4 draining")
		}},
		{What: "s1 gets no new connection", Do: func() {
			before := s.given(1)
			s.Traffic.Busy(running, 100)
			if after := s.given(1); after != before {
				script.Check(await.Broken(fmt.Errorf("s1 drains, and gets %d connections", after-before)))
			}
		}},
		{What: "s1 is named again", Do: func() {
			s.name(1, 2, 3)
			s.awaitServers("1 active, 2 active, 3 active", "4")
		}},
	}
	if whole {
		steps = append(steps, s.replaced()...)
	}
	for _, f := range s.namer.faults() {
		steps = append(steps, world.Step{What: "fault: " + f.what, Do: func() {
			f.do()
			s.awaitSaid(f.says)
			s.awaitServers("1 active, 2 active, 3 active", "4")
		}}, world.Step{What: "it is well again", Do: func() {
			s.name(1, 2, 3)
			s.awaitSaid("")
		}})
	}
	last := s.namer.faults()[0]
	steps = append(steps,
		world.Step{What: "it fails, and a controller dies", Do: func() {
			last.do()
			s.awaitSaid(last.says)
			s.Controllers.Running[world.ControllerName(1)].Kill()
			s.awaitSaid(last.says)
			s.awaitServers("1 active, 2 active, 3 active", "4")
		}},
		world.Step{What: "the controller returns, and knows nothing", Do: func() {
			s.Controllers.Start(world.ControllerName(1))
			s.Controllers.Await(world.ControllerName(1))
			s.awaitSaid("it has never answered: its servers stay as they are")
			s.awaitServers("1 active, 2 active, 3 active", "4")
		}})
	s.Series(running, steps...)
}

// replaced waits until a server that drains is gone, and names it as a new one.
func (s *sourced) replaced() []world.Step {
	return []world.Step{
		{What: "s4 is gone after a minute", Do: func() {
			await.Promised(s.Context, goneMax, "s4 is removed", func() error {
				for _, lb := range []string{world.LBName(1), world.LBName(2)} {
					if have := s.servers(lb); strings.Contains(have, "4 ") {
						return fmt.Errorf("%s has %s", lb, have)
					}
				}
				return nil
			})
		}},
		{What: "s4 is new", Do: func() {
			s.name(1, 2, 3, 4)
			s.awaitServers("1 active, 2 active, 3 active, 4 active")
			before := s.given(4)
			await.Promised(s.Context, world.ResumeMax, "s4 gets connections", func() error {
				if s.given(4) == before {
					return errors.New("none yet")
				}
				return nil
			})
		}},
	}
}

func (s *sourced) name(numbers ...int) {
	var servers []netip.Addr
	for _, i := range numbers {
		servers = append(servers, s.Network.ServerAddress(i, false))
	}
	s.namer.name(servers...)
}

// at is what a load balancer knows of server i, which its source names; nil: nothing.
func (s *sourced) at(lb string, i int) *ballastv1.ServerStatus {
	for _, one := range script.Must(s.Monitor.Servers(lb)) {
		if one.Server.Address == s.Network.ServerAddress(i, false).String() {
			return one
		}
	}
	return nil
}

// servers are those of a load balancer: "1 active, 2 draining".
func (s *sourced) servers(lb string) string {
	var list []string
	for i := range s.Network.Servers {
		if one := s.at(lb, i+1); one != nil && !one.Removed {
			list = append(list, fmt.Sprintf("%d %s", i+1, one.Server.State))
		}
	}
	return strings.Join(list, ", ")
}

// awaitServers waits until both load balancers have these servers. Whether they have those of but, does not matter.
func (s *sourced) awaitServers(want string, but ...string) {
	for _, lb := range []string{world.LBName(1), world.LBName(2)} {
		await.Promised(s.Context, heardMax, lb+" has servers "+want, func() error {
			have := s.servers(lb)
			for _, i := range but {
				if at := strings.Index(have, ", "+i+" "); at >= 0 {
					have = have[:at]
				}
			}
			if have != want {
				return errors.New("it has " + have)
			}
			return nil
		})
	}
}

// given is how many connections both load balancers have given to server i.
func (s *sourced) given(i int) (connections uint64) {
	for _, lb := range []string{world.LBName(1), world.LBName(2)} {
		if one := s.at(lb, i); one != nil {
			connections += one.GetConnections()
		}
	}
	return connections
}

// awaitSaid waits until `ballast ctl source list` says so; empty: that all is well.
func (s *sourced) awaitSaid(want string) {
	await.Promised(s.Context, heardMax, fmt.Sprintf("the source is said to be %q", want), func() error {
		text, err := s.Operator.Ctl("source", "list", "-o", "json")
		if err != nil {
			return err
		}
		var rows []struct {
			Problem string `json:"problem"`
		}
		if err := json.Unmarshal([]byte(text), &rows); err != nil || len(rows) != 1 {
			return fmt.Errorf("%v of %s", err, text)
		}
		if have := rows[0].Problem; want == "" && have != "" || !strings.Contains(have, want) {
			return fmt.Errorf("it is %q", have)
		}
		return nil
	})
}
