// What an operator types on a node of a lab.
package world

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
)

// Operator runs `ballast ctl`, and takes nodes off.
type Operator struct {
	lab         *host.Lab
	controllers int
}

// Command is a running command.
type Command struct {
	*host.Process
	Output, Errors host.Transcript
	Began, Ended   time.Time
}

// Begin starts `ballast ctl` with arguments on a node, for the daemon there.
func (o *Operator) Begin(node string, arguments ...string) (*Command, error) {
	return o.start(node, []string{"ctl", "--run-dir", filepath.Join(o.lab.NodeDir(node), "run"), "--instance", instance}, arguments)
}

// BeginAt starts `ballast ctl` on the operator's node, for the controllers in that order.
func (o *Operator) BeginAt(controllers string, arguments ...string) (*Command, error) {
	flags := []string{"ctl", "--controller", controllers, "--tls-dir", certificates(o.lab), "--tls-name", operatorNode}
	return o.start(operatorNode, flags, arguments)
}

func (o *Operator) start(node string, begin, arguments []string) (*Command, error) {
	c := &Command{Began: time.Now()}
	p, err := o.lab.Start(host.Spawn{Node: node, Program: o.lab.Binary, Stdout: &c.Output, Stderr: &c.Errors,
		Arguments: slices.Concat(begin, arguments)})
	if err != nil {
		return nil, err
	}
	c.Process = p
	c.Wanted.Store(true)
	return c, nil
}

// BeginLeave starts `ballast leave agent` with arguments on a node without systemd, whose daemon runs by options as its unit has them.
func (o *Operator) BeginLeave(node string, arguments ...string) (*Command, error) {
	dir := o.lab.NodeDir(node)
	options := fmt.Sprintf("OPTIONS=--name %s --tls-dir %s --run-dir %s --state-dir %s --controller %s\n", node, certificates(o.lab), filepath.Join(dir, "run"),
		filepath.Join(dir, "state"), ControlAddresses(ControllerName, o.controllers))
	if err := os.WriteFile(filepath.Join(dir, "ballast-agent"), []byte(options), 0o644); err != nil {
		return nil, err
	}
	return o.start(node, []string{"leave", "agent", "--no-stop", "--defaults-dir", dir}, arguments)
}

// Detach has `ballast agent --detach` remove what the agent of a node has left, which must not ask.
func (o *Operator) Detach(node string) error {
	_, err := o.finish(o.start(node, []string{"agent", "--detach", "--instance", instance, "--run-dir", filepath.Join(o.lab.NodeDir(node), "run")}, nil))
	return err
}

// On runs a command on a node, which must succeed, and returns what it prints.
func (o *Operator) On(node string, arguments ...string) (string, error) {
	return o.finish(o.Begin(node, arguments...))
}

// Ctl runs a command at the operator's, which must succeed, and returns what it prints.
func (o *Operator) Ctl(arguments ...string) (string, error) {
	return o.finish(o.BeginAt(ControlAddresses(ControllerName, o.controllers), arguments...))
}

func (o *Operator) finish(c *Command, err error) (string, error) {
	if err == nil {
		err = c.Wait(o.lab.Context, await.Deadline, true)
	}
	if err != nil {
		return "", err
	}
	return c.Output.String(), nil
}

// Wait waits until the command has ended; ok: its exit status must be 0.
func (c *Command) Wait(ctx context.Context, within time.Duration, ok bool) error {
	ctx, cancel := loadmeter.WithTimeout(ctx, within)
	defer cancel()
	select {
	case <-c.Exited:
	case <-ctx.Done():
		c.Kill()
		return fmt.Errorf("ballast %s: not done within %v: %s%s", c.Line(), within, c.Output.String(), c.Errors.String())
	}
	c.Ended = time.Now()
	if c.Command.ProcessState.Success() != ok {
		return fmt.Errorf("ballast %s: %s: %s%s", c.Line(), c.Command.ProcessState, c.Output.String(), c.Errors.String())
	}
	return nil
}

// Line is what was typed, but for the name of the program.
func (c *Command) Line() string { return strings.Join(c.Command.Args[1:], " ") }

// AwaitRing waits until these load balancers, and no others, are on the ring of replicas, and their entries are where they should be.
func (o *Operator) AwaitRing(within time.Duration, numbers ...int) {
	var want []string
	for _, i := range numbers {
		want = append(want, LBName(i))
	}
	await.Promised(o.lab.Context, within, fmt.Sprintf("%s are on the ring", strings.Join(want, ", ")), func() error {
		var ring struct {
			Phase string
			Nodes []struct {
				Name, State string
				Share       float64 // of the ring; 0: off it
			} `json:"load_balancers"`
			Problems []string
		}
		output, err := o.Ctl("replicas", "--json")
		if err == nil {
			err = json.Unmarshal([]byte(output), &ring)
		}
		if err != nil {
			return err
		}
		var have []string
		for _, n := range ring.Nodes {
			if n.Share > 0 {
				have = append(have, n.Name)
			}
		}
		slices.Sort(have)
		if ring.Phase != "synced" || !slices.Equal(have, want) {
			return fmt.Errorf("%s: %v: %v", ring.Phase, have, ring.Problems)
		}
		return nil
	})
}
