// Package rotation has operators rotate the key with `ballast ctl key rotate` while connections are silent, nodes die and commands are
// interrupted.
package rotation

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "rotation", Deadline: 3 * time.Minute, Do: runRotation,
		Promise: "operators rotate the key: it waits for silent clients and lost agents, and breaks nothing unless forced",
	},
}

const rotationKept = 6 // connections that their servers' keepalives alone hold, throughout

func runRotation(run *scenario.Run) {
	one := scenario.CookieService(scenario.VIP4)
	one.Ports, one.Fallback = []uint16{80, world.IdlePort}, model.FallbackHash
	run.Trial(world.Setup{
		Name: "rotation", Services: []*fleet.Service{one},
		Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 3), Management: true, Controllers: 2, EtcdMembers: 1},
	}, func(t *world.Trial) {
		r := &rotationTrial{Trial: t, result: run.Result}
		r.run()
	})
}

// rotationTrial is the series of events.
type rotationTrial struct {
	*world.Trial
	result      *scenario.Result
	idleClients *world.IdleClients
	kept        []world.IdleClient
	quiet       []world.IdleClient // that hold the first rotation up
}

func (r *rotationTrial) run() {
	r.idleClients = r.Clients.NewIdleClients()
	defer r.idleClients.Close()
	for range rotationKept {
		one := script.Must(r.idleClients.Open())
		script.Check(world.KeepAlive(one.Server))
		r.kept = append(r.kept, one)
	}
	running := r.Traffic.Generate(scenario.ShortLived(r.Fleet.Target(), 20), scenario.Browsers(r.Fleet.Target(), 20), scenario.Shorts(r.Fleet.Target(), 40))
	r.Series(running,
		world.Step{What: "rotate to 2, and interrupt it while clients are silent", Do: r.interrupt},
		world.Step{What: "two operators go on, silent clients speak", Do: r.goOn},
		world.Step{What: "rotate to 3 while agents are dead", Do: r.rotateWithoutAgents},
		world.Step{What: "rotate to 4, and force it on a silent client", Do: r.force},
		world.Step{What: "all connections but that one speak", Do: func() { r.talk(r.kept...) }},
		world.Step{What: "ask what a client's SYN would meet", Do: r.explain})
}

// controllersFrom are the controllers in turn, beginning with one of them.
func (r *rotationTrial) controllersFrom(i int) string {
	return world.ControlAddresses(func(j int) string { return world.ControllerName((i+j-2)%r.Network.Controllers + 1) }, r.Network.Controllers)
}

// rotate starts `ballast ctl key rotate`, by one of the controllers.
func (r *rotationTrial) rotate(controller int) *world.Command {
	return script.Must(r.Operator.BeginAt(r.controllersFrom(controller), "key", "rotate"))
}

// refused types a command that must fail, and say why.
func (r *rotationTrial) refused(why string, arguments ...string) {
	c := script.Must(r.Operator.BeginAt(r.controllersFrom(1), arguments...))
	script.Check(c.Wait(r.Context, await.Deadline, false))
	r.result.Expect(strings.Contains(c.Errors.String(), why), "ballast %s said %q, not %q", c.Line(), c.Errors.String(), why)
}

// keyState is what `ballast ctl key list --json` says.
type keyState struct {
	Epochs  []uint32
	Current uint32
	Keys    []struct {
		Epoch       uint32
		Connections *int
		UseRefused  []string `json:"use_refused"`
		DropRefused []string `json:"drop_refused"`
	}
}

// awaitKeys waits until what is known of the keys is what it should be.
func (r *rotationTrial) awaitKeys(what string, right func(keyState) bool) {
	await.Promised(r.Context, await.Deadline, what, func() error {
		printed, err := r.Operator.Ctl("keys", "--json")
		if err != nil {
			return err
		}
		var keys keyState
		if err := json.Unmarshal([]byte(printed), &keys); err != nil {
			return fmt.Errorf("read what keys says: %w: %q", err, printed)
		}
		if !right(keys) {
			return fmt.Errorf("it is %s", printed)
		}
		return nil
	})
}

// awaitSilent waits until exactly so many connections hold up that an old key is dropped, and nothing else does.
func (r *rotationTrial) awaitSilent(current uint32, count int) {
	r.awaitKeys(fmt.Sprintf("%d silent connections alone keep the key of epoch %d", count, current-1), func(keys keyState) bool {
		return keys.Current == current && len(keys.Keys) == 2 && keys.Keys[0].Connections != nil && *keys.Keys[0].Connections == count &&
			*keys.Keys[1].Connections >= len(r.kept) &&
			!slices.ContainsFunc(keys.Keys[0].DropRefused, func(why string) bool { return !strings.Contains(why, "still echo") })
	})
}

// awaitOutput waits until a command that goes on has printed something.
func (r *rotationTrial) awaitOutput(c *world.Command, what string) {
	await.Promised(r.Context, await.Deadline, fmt.Sprintf("ballast %s says %q", c.Line(), what), func() error {
		output := c.Output.String()
		if strings.Contains(output, what) {
			return nil
		}
		if err := c.Died(); err != nil {
			return await.Stop(await.Broken(err))
		}
		return fmt.Errorf("it has printed %q", output)
	})
}

// done waits until rotations have come to their end.
func (r *rotationTrial) done(epoch uint32, rotations ...*world.Command) {
	for _, c := range rotations {
		if err := c.Wait(r.Context, await.Deadline, true); err != nil {
			script.Check(await.Broken(err))
		}
		want := fmt.Sprintf("done: epoch %d is the only one\n", epoch)
		r.result.Expect(strings.HasSuffix(c.Output.String(), want), "ballast %s said %q, not %q at last", c.Line(), c.Output.String(), want)
	}
	r.awaitKeys(fmt.Sprintf("epoch %d is the only one", epoch), func(keys keyState) bool {
		return keys.Current == epoch && slices.Equal(keys.Epochs, []uint32{epoch})
	})
}

// talk has connections say something, which must come back.
func (r *rotationTrial) talk(connections ...world.IdleClient) {
	for _, one := range connections {
		if err := one.Talk(); err != nil {
			script.Check(await.Broken(fmt.Errorf("the connection of %v with %s is broken: %w", one.Client.LocalAddr(), one.At, err)))
		}
	}
}

// silent are connections that say nothing, and that no keepalive holds.
func (r *rotationTrial) silent(servers ...int) (all []world.IdleClient) {
	for _, i := range servers {
		one := r.idleClients.OpenAt(world.ServerName(i))
		all = append(all, one)
	}
	return all
}

func (r *rotationTrial) interrupt() {
	r.quiet = r.silent(1, 2)
	rotation := r.rotate(1)
	r.awaitSilent(2, len(r.quiet))
	r.refused("1 living connection whose client still echoes epoch 1", "key", "drop", "1")
	if err := rotation.Died(); err != nil {
		script.Check(await.Broken(err))
	}
	rotation.Signal(syscall.SIGINT)
	script.Check(rotation.Wait(r.Context, await.Deadline, false))
	complaint := rotation.Errors.String()
	r.result.Expect(strings.Contains(complaint, "still echo") && strings.Contains(complaint, "go on with `ballast ctl key rotate`"),
		"ballast %s that was interrupted said %q", rotation.Line(), complaint)
}

// goOn: data and a keepalive of clients that were silent let two rotations come to their end, which ask different controllers.
func (r *rotationTrial) goOn() {
	var rotations []*world.Command
	for controller := 1; controller <= 2; controller++ {
		rotation := r.rotate(controller)
		r.awaitOutput(rotation, "going on: epochs 1 and 2 are known, 2 is current")
		rotations = append(rotations, rotation)
	}
	r.talk(r.quiet[0])
	r.awaitSilent(2, 1)
	script.Check(world.KeepAlive(r.quiet[1].Client))
	r.done(2, rotations...)
	r.talk(r.quiet...)
	for _, one := range r.quiet {
		one.Client.Close()
	}
}

// rotateWithoutAgents: one is dead before the key is used, another before the old key is dropped.
func (r *rotationTrial) rotateWithoutAgents() {
	silent := r.silent(2)
	r.Daemons.Agents[world.ServerName(3)].Kill()
	rotation := r.rotate(1)
	r.awaitOutput(rotation, "agent s3 is lost")
	r.awaitKeys("the agent of s3 alone holds up that the key is used", func(keys keyState) bool {
		return keys.Current == 2 && len(keys.Keys) == 2 && all(keys.Keys[1].UseRefused, "s3")
	})
	r.refused("agent s3 is lost", "key", "use", "3")
	r.startAgent(3)
	r.awaitSilent(3, len(silent))
	r.Daemons.Agents[world.ServerName(2)].Kill()
	r.talk(silent...)
	silent[0].Client.Close()
	r.awaitKeys("the agent of s2 alone holds up that the key is dropped", func(keys keyState) bool {
		return keys.Current == 3 && len(keys.Keys) == 2 && all(keys.Keys[0].DropRefused, "s2")
	})
	r.refused("agent s2 is lost", "key", "drop", "2")
	script.Check(rotation.Died())
	r.startAgent(2)
	r.done(3, rotation)
}

// all reports whether there are reasons, and each is about one thing.
func all(reasons []string, about string) bool {
	return len(reasons) > 0 && !slices.ContainsFunc(reasons, func(why string) bool { return !strings.Contains(why, about) })
}

func (r *rotationTrial) startAgent(i int) {
	r.Daemons.Agents[world.ServerName(i)] = r.Daemons.Start("agent", world.ServerName(i))
}

// force: no table knows the way to a draining server, so a connection there whose cookie is not read any more ends.
func (r *rotationTrial) force() {
	silent := r.silent(1)
	script.Must(r.Operator.Ctl("server", "drain", "web", world.ServerName(1)))
	rotation := r.rotate(2)
	r.awaitSilent(4, len(silent))
	r.refused("1 living connection whose client still echoes epoch 3", "key", "drop", "3")
	script.Must(r.Operator.Ctl("key", "drop", "3", "--force"))
	r.done(4, rotation)
	err := silent[0].Talk()
	r.result.Expect(errors.Is(err, syscall.ECONNRESET), "the connection that the force was for: %v", err)
}

// explain: each load balancer says that a new connection gets a server that does not drain.
func (r *rotationTrial) explain() {
	var answers []struct {
		Node, Error, Verdict, Action string
		Candidates                   []struct{ Name string }
	}
	printed := script.Must(r.Operator.Ctl("explain", r.kept[0].Client.LocalAddr().String(), r.Fleet.Target(), "--json"))
	script.Check(json.Unmarshal([]byte(printed), &answers))
	r.result.Expect(len(answers) == r.Network.LBs, "%d load balancers say what they would do: %s", len(answers), printed)
	for _, a := range answers {
		right := a.Error == "" && a.Verdict == "forwarded_new" && a.Action == "send" && len(a.Candidates) == 2
		for _, c := range a.Candidates {
			right = right && c.Name != world.ServerName(1)
		}
		r.result.Expect(right, "%s would do something else with a SYN: %s", a.Node, printed)
	}
}
