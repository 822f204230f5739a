// ctl server drain, and the wait until nothing is left.
package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants of waiting for a server to drain.
const (
	drainPeriod = 500 * time.Millisecond // between two looks
	drainExact  = 6                      // looks in a row that a count of 0 must hold for: agents report a draining server in each interval, and SYNs may be under way
	drainSteady = 24                     // the same for an estimate: load balancers report all that they count every 10 s
)

func drain(c *ask.Control) *cobra.Command {
	var deadline, timeout time.Duration
	var wait bool
	cmd := &cobra.Command{Use: "drain SERVICE SERVER", Short: "Give a server no new connections; those it has stay"}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !wait && timeout != 0 {
			return command.Usage("--timeout ends a --wait: give both")
		}
		if err := cmp.Or(command.NotNegative("deadline", deadline), command.NotNegative("timeout", timeout)); err != nil {
			return err
		}
		request := &ballastv1.DrainServerRequest{Service: args[0], Server: args[1]}
		if cmd.Flags().Changed("deadline") {
			request.Deadline = durationpb.New(deadline)
		}
		fleet, err := c.Fleet(cmd)
		if err != nil {
			return err
		}
		w := &drainWait{fleet: fleet, service: args[0], server: args[1], began: time.Now(), line: command.NewLine(nil, 0)}
		if wait && deadline+timeout == 0 && !c.DryRun() { // else the waiting ends by itself
			if err := w.checkCounted(cmd.Context()); err != nil {
				return err
			}
		}
		done, err := ask.Change(c, cmd, drainUncut, request)
		if err != nil {
			return err
		}
		if !wait || c.DryRun() || !c.Structured() {
			err = c.PrintOutcome(cmd, done)
		}
		if !wait || c.DryRun() || err != nil {
			return err
		}
		if !c.Structured() {
			w.line = command.NewLine(cmd.OutOrStdout(), 0)
		}
		if err := w.run(cmd.Context(), timeout); err != nil {
			return err
		}
		return command.Print(cmd.OutOrStdout(), c.Output, w.drained(), printDrained)
	}
	c.CanPlan(cmd)
	cmd.Flags().DurationVar(&deadline, "deadline", 0, "cut the connections that are left after this long (default: never)")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until no connection is left or the deadline has passed")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "wait no longer than that, exit with an error then (default: for ever)")
	return cmd
}

func drainUncut(fleet ballastv1connect.FleetClient, ctx context.Context, request *ballastv1.DrainServerRequest) (*ballastv1.ChangeResponse, error) {
	ctx, cancel := ask.Uncut(ctx)
	defer cancel()
	return fleet.DrainServer(ctx, request)
}

// drained is how the waiting ended, as --json prints it.
type drained struct {
	Service   string   `json:"service"`
	Server    string   `json:"server"`
	Remaining *uint64  `json:"connections"` // null: it is not known
	Exact     bool     `json:"connections_exact"`
	OneNode   bool     `json:"one_node"` // who was asked speaks for itself alone
	Cut       bool     `json:"deadline_passed"`
	Lost      []string `json:"lost_load_balancers,omitempty"` // that may still send to it
	Seconds   float64  `json:"seconds"`
}

func printDrained(out *command.Table, d drained) {
	if d.Cut {
		except := ""
		if len(d.Lost) > 0 {
			except = fmt.Sprintf("; %s and may still send to it: %s", areLost(d.Lost), forgetLost)
		}
		out.Line("the deadline has passed: server %s is off, and what was left is cut%s", d.Server, except)
		return
	}
	if d.OneNode && !d.Exact {
		out.Line("server %s is drained: no connection that this load balancer has seen is left: ask the others, too; `ballast ctl status` on the server counts those that carry cookies", d.Server)
		return
	}
	out.Line("server %s is drained: no connection is left", d.Server)
}

// forgetLost is what to do about load balancers that a wait is for.
const forgetLost = "connect it again or, once it is stopped, `ballast ctl node forget NAME`"

// drainWait watches what remains of a server's connections.
type drainWait struct {
	fleet           ballastv1connect.FleetClient
	service, server string
	began           time.Time
	line            *command.Line

	last    *ballastv1.ServerStatus // what was told last; nil: nothing yet
	lost    []string                // load balancers that do not know that it drains
	oneNode bool                    // by a load balancer for itself alone
	busy    bool                    // packets came since the look before: of connections that an estimate of 0 has missed
	zeros   int                     // in a row: nothing is left, as far as is known
	silent  error                   // why the last look was in vain
}

// checkCounted refuses to wait for what nobody will ever say.
func (w *drainWait) checkCounted(ctx context.Context) error {
	answer, err := w.fleet.GetFleet(ctx, &ballastv1.GetFleetRequest{})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(answer.Services, func(s *ballastv1.Service) bool { return s.Name == w.service })
	var affinity model.Affinity
	if i < 0 || affinity.UnmarshalText([]byte(answer.Services[i].Affinity)) != nil || affinity.Cookies() {
		return nil // load balancers see the ends of connections with cookies
	}
	status, err := w.find(ctx)
	if err == nil && !status.GetConnectionsExact() {
		return fmt.Errorf("wait for %s: nobody counts its connections, as service %s has affinity %s and the server no agent: give --deadline or --timeout", w.server, w.service, affinity)
	}
	return err
}

// find asks for the server; nil: there is none of the name any more.
func (w *drainWait) find(ctx context.Context) (found *ballastv1.ServerStatus, err error) {
	answer, err := w.fleet.ListServers(ctx, &ballastv1.ListServersRequest{Service: w.service})
	if err != nil {
		return nil, err
	}
	w.oneNode, w.lost = answer.OneNode, answer.Lost
	for _, status := range answer.Servers {
		if status.Server.GetName() == w.server && (found == nil || found.Removed) {
			found = status
		}
	}
	if found != nil && found.Connections == nil && found.ConnectionsExact { // of a controller that leaves 0 out
		found.Connections = new(uint64)
	}
	return found, nil
}

// run waits until the server has drained. The first look is in any case: who stops waiting wants to know what is left.
func (w *drainWait) run(ctx context.Context, timeout time.Duration) error {
	waiting, cancel := ctx, context.CancelFunc(func() {})
	if timeout > 0 {
		waiting, cancel = context.WithTimeout(ctx, timeout)
	}
	defer cancel()
	ended, err := command.Every(waiting, drainPeriod, func() (bool, error) {
		if w.last == nil && w.silent == nil {
			return w.look(ctx)
		}
		return w.look(waiting)
	})
	w.line.Leave()
	if err == nil && !ended && len(w.lost) > 0 {
		return fmt.Errorf("no longer waiting, %s; %s: server %s of %s goes on draining", w.remaining(), w.ofLost(), w.server, w.service)
	}
	if err == nil && !ended {
		err = fmt.Errorf("no longer waiting, %s: server %s of %s goes on draining: undo it with `ballast ctl server undrain %s %s`",
			w.remaining(), w.server, w.service, w.service, w.server)
	}
	return err
}

func (w *drainWait) look(ctx context.Context) (ended bool, err error) {
	found, err := w.find(ctx)
	if ctx.Err() != nil {
		return false, nil
	}
	if w.silent = err; connect.CodeOf(err) == connect.CodeUnavailable { // another controller, or the same a little later, will know
		w.sayRemaining()
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if found == nil {
		return false, fmt.Errorf("server %s of %s is gone: it was removed, with the connections that it had", w.server, w.service)
	}
	w.busy = !found.ConnectionsExact && w.last != nil && w.last.Activity != found.Activity
	w.last = found
	if state := found.Server.State; !found.Removed && state != "draining" && state != "off" {
		return false, fmt.Errorf("server %s of %s is %s again: another request has changed it", w.server, w.service, state)
	}
	w.zeros++
	if found.Connections == nil || *found.Connections > 0 || w.busy || len(w.lost) > 0 {
		w.zeros = 0
	}
	w.sayRemaining()
	return w.off() || w.zeros >= drainSteady || w.zeros >= drainExact && found.ConnectionsExact, nil
}

func (w *drainWait) off() bool { return w.last.GetServer().GetState() == "off" }

func (w *drainWait) remaining() string {
	if w.last == nil || w.last.Connections == nil {
		return "it is not known how many connections remain"
	}
	remain := model.Counted(*w.last.Connections, "connection remains", "connections remain")
	switch {
	case w.last.ConnectionsExact:
		return remain
	case w.busy && *w.last.Connections == 0:
		return "connections remain that began elsewhere: packets of them come"
	}
	return "about " + remain
}

// ofLost is why no count ends the waiting.
func (w *drainWait) ofLost() string {
	return fmt.Sprintf("%s and may still send new ones: %s", areLost(w.lost), forgetLost)
}

// sayRemaining tells on a terminal, too, when it ends at the latest.
func (w *drainWait) sayRemaining() {
	text := w.remaining()
	if len(w.lost) > 0 {
		text += "; " + w.ofLost()
	}
	if w.silent != nil {
		text += " (no answer at the moment)"
	}
	if at := w.last.GetServer().GetDeadline(); w.line.Live && at != nil {
		text += fmt.Sprintf(", the deadline is in %s", max(time.Until(at.AsTime()), 0).Round(time.Second))
	}
	w.line.Renew(text)
}

func (w *drainWait) drained() drained {
	return drained{w.service, w.server, w.last.Connections, w.last.ConnectionsExact, w.oneNode, w.off(), w.lost, time.Since(w.began).Seconds()}
}
