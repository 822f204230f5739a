// ctl fleet: the fleet as it is, as it was, how these differ, and the way back.
package fleet

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
)

// Fleet makes `ballast ctl fleet show`, `diff` and `rollback`, by itself the same as `show`.
func Fleet(c *ask.Control) *cobra.Command {
	cmd := ask.Lone("fleet", func() *cobra.Command { return showFleet(c) })
	cmd.AddCommand(diffFleets(c), rollBack(c))
	return cmd
}

// fleetAt is what the fleet was to be after a revision; 0: what it is to be now.
func fleetAt(c *ask.Control, cmd *cobra.Command, revision uint64) (model.Fleet, error) {
	answer, err := ask.Fleet(c, cmd, ballastv1connect.FleetClient.GetFleet, &ballastv1.GetFleetRequest{Revision: revision})
	if err != nil {
		return model.Fleet{}, err
	}
	if answer.Revision != revision && revision != 0 {
		return model.Fleet{}, fmt.Errorf("the controller answered for revision %d: it is of a version that keeps none: upgrade it", answer.Revision)
	}
	return api.FleetFromProto(answer, nil)
}

func parseRevision(text string) (uint64, error) {
	revision, err := strconv.ParseUint(text, 10, 64)
	if err != nil || revision == 0 {
		return 0, command.Usage("%q is no revision: `ballast ctl history list` lists them", text)
	}
	return revision, nil
}

// difference is what --json prints.
type difference struct {
	From    uint64   `json:"from"`
	To      uint64   `json:"to,omitempty"` // absent: now
	Changes []string `json:"changes"`
}

func diffFleets(c *ask.Control) *cobra.Command {
	return &cobra.Command{
		Use:   "diff REVISION [REVISION]",
		Short: "Show what changed from one revision to another, or until now",
		RunE: func(cmd *cobra.Command, args []string) error {
			var revisions [2]uint64
			var fleets [2]model.Fleet
			for i := range fleets {
				var err error
				if i < len(args) {
					if revisions[i], err = parseRevision(args[i]); err != nil {
						return err
					}
				}
				if fleets[i], err = fleetAt(c, cmd, revisions[i]); err != nil {
					return err
				}
			}
			done := difference{revisions[0], revisions[1], command.NonNil(fleet.Diff(fleets[0], fleet.OfPeople(fleets[1])))}
			if c.Structured() {
				return c.Write(cmd.OutOrStdout(), done)
			}
			ask.ShowChanges(cmd.OutOrStdout(), done.Changes)
			return nil
		},
	}
}

func rollBack(c *ask.Control) *cobra.Command {
	a := application{Control: c}
	cmd := &cobra.Command{
		Use:   "rollback REVISION",
		Short: "Make the fleet what it was after a revision, after showing what that changes",
		RunE: func(cmd *cobra.Command, args []string) error {
			revision, err := parseRevision(args[0])
			if err != nil {
				return err
			}
			was, err := fleetAt(c, cmd, revision)
			if err != nil {
				return err
			}
			c.Because(fmt.Sprintf("rollback to revision %d", revision))
			request := api.FleetToProto(&was)
			request.Exact = true
			return a.apply(cmd, request, func(err error) error { return err })
		},
	}
	c.CanPlan(cmd)
	cmd.Flags().BoolVar(&a.yes, "yes", false, "do not ask")
	return cmd
}
