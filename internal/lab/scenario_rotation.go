// rotation: operators rotate the key with `ballast ctl key rotate` while connections are silent, nodes die and commands are interrupted.
package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
)

const rotationKept = 6 // connections that their servers' keepalives alone hold, throughout

func runRotation(s *stage) error {
	one := cookieService(vip4)
	one.Ports, one.Fallback = []uint16{80, holderPort}, "hash"
	outcome, err := s.trial(setup{
		name: "rotation", services: []*service{one},
		topology: Topology{LBs: 2, Servers: make([]ServerNode, 3), Management: true, Controllers: 2, EtcdMembers: 1},
	}, func(t *trial) error {
		r := &rotationTrial{trial: t, result: s.result}
		return r.play()
	})
	if err != nil {
		return err
	}
	s.unbroken(outcome)
	return nil
}

// rotationTrial is the series of events.
type rotationTrial struct {
	*trial
	result  *Result
	holders *holders
	kept    []holder
	quiet   []holder // that hold the first rotation up
}

func (r *rotationTrial) play() (err error) {
	if r.holders, err = r.newHolders(); err != nil {
		return err
	}
	defer r.holders.close()
	for range rotationKept {
		one, err := r.holders.open()
		if err == nil {
			err = keepAlive(one.server)
		}
		if err != nil {
			return err
		}
		r.kept = append(r.kept, one)
	}
	running, err := r.generate(restless(r.target(), 20), browsers(r.target(), 20), shorts(r.target(), 40))
	if err != nil {
		return err
	}
	return r.series(running,
		step{"rotate to 2, and interrupt it while clients are silent", r.interrupt},
		step{"two operators go on, silent clients speak", r.goOn},
		step{"rotate to 3 while agents are dead", r.rotateWithoutAgents},
		step{"rotate to 4, and force it on a silent client", r.force},
		step{"all connections but that one speak", func() error { return r.talk(r.kept...) }})
}

// controllersFrom are the controllers in turn, beginning with one of them.
func (r *rotationTrial) controllersFrom(i int) string {
	return controlAddresses(func(j int) string { return controllerName((i+j-2)%r.topo.Controllers + 1) }, r.topo.Controllers)
}

// rotate starts `ballast ctl key rotate`, by one of the controllers.
func (r *rotationTrial) rotate(controller int) (*command, error) {
	return r.operated(r.controllersFrom(controller), "key", "rotate")
}

// refused types a command that must fail, and say why.
func (r *rotationTrial) refused(why string, arguments ...string) error {
	c, err := r.operated(r.controllersFrom(1), arguments...)
	if err == nil {
		err = c.wait(r.ctx, daemonDeadline, false)
	}
	if err != nil {
		return err
	}
	r.result.expect(strings.Contains(c.complained.String(), why), "ballast %s said %q, not %q", c.line(), c.complained.String(), why)
	return nil
}

// keyState is what `ballast ctl keys --json` says.
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
func (r *rotationTrial) awaitKeys(what string, right func(keyState) bool) error {
	return awaitPromised(r.ctx, daemonDeadline, what, func() error {
		printed, err := r.ctl("keys", "--json")
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
func (r *rotationTrial) awaitSilent(current uint32, count int) error {
	return r.awaitKeys(fmt.Sprintf("%d silent connections alone keep the key of epoch %d", count, current-1), func(keys keyState) bool {
		return keys.Current == current && len(keys.Keys) == 2 && keys.Keys[0].Connections != nil && *keys.Keys[0].Connections == count &&
			*keys.Keys[1].Connections >= len(r.kept) &&
			!slices.ContainsFunc(keys.Keys[0].DropRefused, func(why string) bool { return !strings.Contains(why, "still echo") })
	})
}

// awaitSaid waits until a command that goes on has said something.
func (r *rotationTrial) awaitSaid(c *command, what string) error {
	return awaitPromised(r.ctx, daemonDeadline, fmt.Sprintf("ballast %s says %q", c.line(), what), func() error {
		said := c.said.String()
		if strings.Contains(said, what) {
			return nil
		}
		if err := c.died(); err != nil {
			return stopWaiting(&brokenPromise{err})
		}
		return fmt.Errorf("it has said %q", said)
	})
}

// done waits until rotations have come to their end.
func (r *rotationTrial) done(epoch uint32, rotations ...*command) error {
	for _, c := range rotations {
		if err := c.wait(r.ctx, daemonDeadline, true); err != nil {
			return &brokenPromise{err}
		}
		want := fmt.Sprintf("done: epoch %d is the only one\n", epoch)
		r.result.expect(strings.HasSuffix(c.said.String(), want), "ballast %s said %q, not %q at last", c.line(), c.said.String(), want)
	}
	return r.awaitKeys(fmt.Sprintf("epoch %d is the only one", epoch), func(keys keyState) bool {
		return keys.Current == epoch && slices.Equal(keys.Epochs, []uint32{epoch})
	})
}

// talk has connections say something, which must come back.
func (r *rotationTrial) talk(connections ...holder) error {
	for _, one := range connections {
		if err := one.talk(); err != nil {
			return &brokenPromise{fmt.Errorf("the connection of %v with %s is broken: %w", one.client.LocalAddr(), one.at, err)}
		}
	}
	return nil
}

// silent are connections that say nothing, and that no keepalive holds.
func (r *rotationTrial) silent(servers ...int) (all []holder, err error) {
	for _, i := range servers {
		one, err := r.holders.openAt(serverName(i))
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func (r *rotationTrial) interrupt() (err error) {
	if r.quiet, err = r.silent(1, 2); err != nil {
		return err
	}
	rotation, err := r.rotate(1)
	if err != nil {
		return err
	}
	if err := r.awaitSilent(2, len(r.quiet)); err != nil {
		return err
	}
	if err := r.refused("1 living connection whose client still echoes epoch 1", "key", "drop", "1"); err != nil {
		return err
	}
	if err := rotation.died(); err != nil {
		return &brokenPromise{err}
	}
	rotation.signal(syscall.SIGINT)
	if err := rotation.wait(r.ctx, daemonDeadline, false); err != nil {
		return err
	}
	complained := rotation.complained.String()
	r.result.expect(strings.Contains(complained, "still echo") && strings.Contains(complained, "go on with `ballast ctl key rotate`"),
		"ballast %s that was interrupted said %q", rotation.line(), complained)
	return nil
}

// goOn: data and a keepalive of clients that were silent let two rotations come to their end, which ask different controllers.
func (r *rotationTrial) goOn() error {
	var rotations []*command
	for controller := 1; controller <= 2; controller++ {
		rotation, err := r.rotate(controller)
		if err != nil {
			return err
		}
		if err := r.awaitSaid(rotation, "going on: epochs 1 and 2 are known, 2 is current"); err != nil {
			return err
		}
		rotations = append(rotations, rotation)
	}
	if err := r.talk(r.quiet[0]); err != nil {
		return err
	}
	if err := r.awaitSilent(2, 1); err != nil {
		return err
	}
	if err := keepAlive(r.quiet[1].client); err != nil {
		return err
	}
	if err := r.done(2, rotations...); err != nil {
		return err
	}
	err := r.talk(r.quiet...)
	for _, one := range r.quiet {
		one.client.Close()
	}
	return err
}

// rotateWithoutAgents: one is dead before the key is used, another before the old key is dropped.
func (r *rotationTrial) rotateWithoutAgents() error {
	silent, err := r.silent(2)
	if err != nil {
		return err
	}
	r.agents[serverName(3)].kill()
	rotation, err := r.rotate(1)
	if err != nil {
		return err
	}
	if err := r.awaitSaid(rotation, "agent s3 is lost"); err != nil {
		return err
	}
	err = r.awaitKeys("the agent of s3 alone holds up that the key is used", func(keys keyState) bool {
		return keys.Current == 2 && len(keys.Keys) == 2 && all(keys.Keys[1].UseRefused, "s3")
	})
	if err := errors.Join(err, r.refused("agent s3 is lost", "key", "use", "3"), r.startAgent(3)); err != nil {
		return err
	}
	if err := r.awaitSilent(3, len(silent)); err != nil {
		return err
	}
	r.agents[serverName(2)].kill()
	if err := r.talk(silent...); err != nil {
		return err
	}
	silent[0].client.Close()
	err = r.awaitKeys("the agent of s2 alone holds up that the key is dropped", func(keys keyState) bool {
		return keys.Current == 3 && len(keys.Keys) == 2 && all(keys.Keys[0].DropRefused, "s2")
	})
	if err := errors.Join(err, r.refused("agent s2 is lost", "key", "drop", "2"), rotation.died(), r.startAgent(2)); err != nil {
		return err
	}
	return r.done(3, rotation)
}

// all tells whether there are reasons, and each is about one thing.
func all(reasons []string, about string) bool {
	return len(reasons) > 0 && !slices.ContainsFunc(reasons, func(why string) bool { return !strings.Contains(why, about) })
}

func (r *rotationTrial) startAgent(i int) (err error) {
	r.agents[serverName(i)], err = r.startDaemon("agent", serverName(i))
	return err
}

// force: no table knows the way to a draining server, so a connection there whose cookie is not read any more ends.
func (r *rotationTrial) force() error {
	silent, err := r.silent(1)
	if err != nil {
		return err
	}
	if _, err := r.ctl("server", "drain", "web", serverName(1)); err != nil {
		return err
	}
	rotation, err := r.rotate(2)
	if err != nil {
		return err
	}
	if err := r.awaitSilent(4, len(silent)); err != nil {
		return err
	}
	if err := r.refused("1 living connection whose client still echoes epoch 3", "key", "drop", "3"); err != nil {
		return err
	}
	if _, err := r.ctl("key", "drop", "3", "--force"); err != nil {
		return err
	}
	if err := r.done(4, rotation); err != nil {
		return err
	}
	err = silent[0].talk()
	r.result.expect(errors.Is(err, syscall.ECONNRESET), "the connection that the force was for: %v", err)
	return nil
}
