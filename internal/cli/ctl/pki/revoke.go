// Revoked certificates, which controllers keep the list of.
package pki

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/pki"
)

func revoke(c *ask.Control) *cobra.Command {
	request := &ballastv1.RevokeCertificateRequest{}
	cmd := &cobra.Command{Use: "revoke NAME|SERIAL|FILE.crt", Short: "Revoke certificates; this cannot be undone"}
	ask.Changing(c, cmd, ballastv1connect.FleetClient.RevokeCertificate, func(args []string) (*ballastv1.RevokeCertificateRequest, error) {
		if strings.HasSuffix(args[0], ".crt") || strings.Contains(args[0], "/") {
			var err error
			if request.Certificate, err = pki.ReadChain(args[0]); err != nil {
				return nil, err
			}
		} else if serial, ok := pki.ParseSerial(args[0]); ok {
			request.Serial = serial
		} else {
			request.Name = args[0]
		}
		if request.Role != "" && request.Name == "" {
			return nil, command.Usage("--role is for a NAME: one certificate has the role that it has")
		}
		return request, nil
	})
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if err == nil && request.Name != "" && !c.DryRun() { // what is issued after this command is not meant, and certificates tell the second
			now := time.Now()
			time.Sleep(now.Truncate(time.Second).Add(time.Second).Sub(now))
		}
		return err
	}
	cmd.Flags().Var(command.OneOf(&request.Role, roles()...), "role", "of a NAME, those of ROLE alone: "+strings.Join(roles(), ", ")+" (default: of all roles)")
	cmd.Flags().StringVar(&request.Reason, "reason", "", "`TEXT` for lists, logs and the owner")
	cmd.Flags().BoolVar(&request.LockOut, "force", false, "even if it is the certificate that you use, or no controller is left")
	c.MayHarm(cmd)
	return cmd
}

// roles are those that certificates can have.
func roles() (names []string) {
	for _, role := range pki.Roles() {
		names = append(names, string(role))
	}
	return names
}

// revokedRow is one entry of the list, as --json prints it.
type revokedRow struct {
	Serial  string    `json:"serial,omitempty"` // empty: all of the name that were issued up to then
	Name    string    `json:"name,omitempty"`
	Role    string    `json:"role,omitempty"` // empty, without a serial number: all
	Revoked time.Time `json:"revoked"`
	Ends    time.Time `json:"ends"` // it leaves the list
	Reason  string    `json:"reason,omitempty"`
}

func list(c *ask.Control) *cobra.Command {
	return command.Listing(&cobra.Command{Use: "list", Short: "List revoked certificates"}, c.Output,
		func(cmd *cobra.Command, _ []string) ([]revokedRow, error) {
			known, err := ask.Fleet(c, cmd, ballastv1connect.FleetClient.ListRevocations, &ballastv1.ListRevocationsRequest{})
			if err != nil {
				return nil, err
			}
			rows := []revokedRow{}
			for _, r := range known.Revocations {
				rows = append(rows, revokedRow{Serial: r.Serial, Name: r.Name, Role: r.Role, Revoked: r.At.AsTime(), Ends: r.Ends.AsTime(), Reason: r.Reason})
			}
			return rows, nil
		}, printRevoked)
}

func printRevoked(table *command.Table, rows []revokedRow) {
	if len(rows) == 0 {
		table.Line("no certificate is revoked")
		return
	}
	table.Row("NAME", "ROLE", "SERIAL", "REVOKED", "LISTED UNTIL", "REASON")
	for _, r := range rows {
		serial := r.Serial
		if serial == "" {
			serial = "all issued before"
		}
		table.Row(command.OrDash(r.Name), command.OrDash(r.Role), serial, r.Revoked.Format(time.RFC3339), r.Ends.Format(time.RFC3339), command.OrDash(r.Reason))
	}
}
