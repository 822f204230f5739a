// Package invite is `ballast ctl invite`: tokens by which machines join a fleet.
package invite

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Command makes `ballast ctl invite`.
func Command(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "invite", Short: "Invite machines to join the fleet, each by a token"}
	cmd.AddCommand(Add(c), list(c), revoke(c))
	return cmd
}

// row is one invitation, as --json prints it.
type row struct {
	ID        string    `json:"id"`
	Role      string    `json:"role"`
	Uses      uint32    `json:"uses"`
	Left      uint32    `json:"left"`
	Made      time.Time `json:"made"`
	Ends      time.Time `json:"ends"`
	By        string    `json:"by"`
	Name      string    `json:"name,omitempty"` // of the only machine that it is for
	Addresses []string  `json:"addresses,omitempty"`
	Joined    []string  `json:"joined"`
	Revoked   time.Time `json:"revoked,omitzero"`
}

func rowOf(i *ballastv1.Invitation) row {
	r := row{ID: i.Id, Role: i.Role, Uses: i.Uses, Left: i.Left, Made: i.Made.AsTime(), Ends: i.Ends.AsTime(), By: i.By, Name: i.Name, Addresses: i.Addresses, Joined: command.NonNil(i.Joined)}
	if i.Revoked != nil {
		r.Revoked = i.Revoked.AsTime()
	}
	return r
}

// added is a new invitation, as --json prints it.
type added struct {
	row
	Token       string   `json:"token"`
	Controllers []string `json:"controllers"`
	Command     string   `json:"command"` // to run on the machine
}

const day = 24 * time.Hour

// Add makes `ballast ctl invite add`.
func Add(c *ask.Control) *cobra.Command {
	request, valid, days := &ballastv1.InviteRequest{}, time.Hour, uint(pki.DefaultEnrolledLife/day)
	cmd := &cobra.Command{
		Use: "add ROLE", Short: "Print the command by which a machine joins as lb or agent",
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := c.Enrolment()
			if err != nil {
				return err
			}
			if days < 1 || days > 366 {
				return command.Usage("--days %d: use 1 to 366", days)
			}
			request.Role, request.Valid, request.Life = args[0], durationpb.New(valid), durationpb.New(time.Duration(days)*day)
			request.DryRun = c.DryRun()
			answer, err := client.Invite(cmd.Context(), request)
			if err != nil {
				return err
			}
			if c.DryRun() {
				return c.PrintOutcome(cmd, ask.Outcome{Changes: answer.Changes, DryRun: true})
			}
			made := added{rowOf(answer.Invitation), answer.Token, answer.Controllers, "ballast join " + endpoints(answer.Controllers) + " --token " + answer.Token}
			if made.Name != "" {
				made.Command += " --name " + made.Name
			}
			if !c.Structured() && command.IsTerminal(cmd.OutOrStdout()) { // else a shell runs it
				fmt.Fprintf(cmd.ErrOrStderr(), "# run this on the machine; %s until %s, invitation %s\n", model.Counted(int(made.Uses), "use", "uses"), made.Ends.Format(time.RFC3339), made.ID)
			}
			return command.Print(cmd.OutOrStdout(), c.Output, made, func(out *command.Table, made added) { out.Line("%s", made.Command) })
		},
	}
	c.CanPlan(cmd)
	flags := cmd.Flags()
	flags.Uint32Var(&request.Uses, "uses", 1, "how many machines may join by it")
	flags.DurationVar(&valid, "for", valid, "how long they may")
	flags.StringVar(&request.Name, "name", "", "`NAME` of the only machine that may (default: any, under the name that it says)")
	flags.StringSliceVar(&request.Addresses, "address", nil, "`ADDRESS` of the machine besides the one that it joins from, may be repeated")
	flags.UintVar(&days, "days", days, "how long its certificates are valid; it renews them")
	return cmd
}

// endpoints are controllers as people write them: the usual port goes without saying.
func endpoints(controllers []string) string {
	short := make([]string, len(controllers))
	for i, endpoint := range controllers {
		short[i] = endpoint
		if host, port, err := net.SplitHostPort(endpoint); err == nil && port == command.ControllerPort && !strings.Contains(host, ":") {
			short[i] = host
		}
	}
	return strings.Join(short, ",")
}

func list(c *ask.Control) *cobra.Command {
	return command.Listing(&cobra.Command{Use: "list", Short: "List invitations, and who joined by them"}, c.Output,
		func(cmd *cobra.Command, _ []string) ([]row, error) {
			client, err := c.Enrolment()
			if err != nil {
				return nil, err
			}
			answer, err := client.ListInvitations(cmd.Context(), &ballastv1.ListInvitationsRequest{})
			if err != nil {
				return nil, err
			}
			rows := []row{}
			for _, i := range answer.Invitations {
				rows = append(rows, rowOf(i))
			}
			return rows, nil
		}, show)
}

func show(table *command.Table, rows []row) {
	if len(rows) == 0 {
		table.Line("no machine is invited")
		return
	}
	table.Row("ID", "ROLE", "LEFT", "UNTIL", "BY", "FOR", "JOINED")
	for _, r := range rows {
		until := r.Ends.Format(time.RFC3339)
		if !r.Revoked.IsZero() {
			until = "revoked"
		}
		table.Row(r.ID, r.Role, fmt.Sprintf("%d of %d", r.Left, r.Uses), until, command.OrDash(r.By), command.OrDash(strings.TrimSpace(r.Name+" "+strings.Join(r.Addresses, " "))),
			command.OrDash(strings.Join(r.Joined, " ")))
	}
}

func revoke(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "Let nobody join by an invitation any more",
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := c.Enrolment()
			if err != nil {
				return err
			}
			done, err := ask.Meant(c, cmd, &ballastv1.RevokeInvitationRequest{Id: args[0]}, client.RevokeInvitation)
			if err != nil {
				return err
			}
			return c.PrintOutcome(cmd, done)
		},
	}
	c.CanPlan(cmd)
	return cmd
}
