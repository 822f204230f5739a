// The keys of TLS session tickets: ticket list|use|revoke.
package keys

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

// ticketList is what is known of all keys, as --json prints it.
type ticketList struct {
	Needed  bool        `json:"needed"` // some service has session tls
	Current uint32      `json:"current"`
	Keys    []ticketRow `json:"keys"`
	Due     time.Time   `json:"due,omitzero"` // when the next is used
	Behind  []string    `json:"behind,omitempty"`
	Own     []string    `json:"own,omitempty"` // agents with keys of their own
}

// ticketRow is one epoch, as --json prints it.
type ticketRow struct {
	Epoch   uint32    `json:"epoch"`
	Made    time.Time `json:"made"`
	Expires time.Time `json:"expires,omitzero"`
}

// ListTickets makes `ballast ctl ticket list`.
func ListTickets(c *ask.Control) *cobra.Command {
	return command.Listing(&cobra.Command{
		Use: "list", Short: "List epochs of ticket keys, never the keys",
	}, c.Output, func(cmd *cobra.Command, _ []string) (list ticketList, err error) {
		known, err := ask.Fleet(c, cmd, ballastv1connect.FleetClient.ListTicketKeys, &ballastv1.ListTicketKeysRequest{})
		if err != nil {
			return list, err
		}
		list = ticketList{Needed: known.Needed, Current: known.Current, Keys: []ticketRow{}, Behind: known.Behind, Own: known.Own}
		if known.Due != nil {
			list.Due = known.Due.AsTime()
		}
		for _, key := range known.Keys {
			row := ticketRow{Epoch: key.Epoch, Made: key.Made.AsTime()}
			if key.Expires != nil {
				row.Expires = key.Expires.AsTime()
			}
			list.Keys = append(list.Keys, row)
		}
		return list, nil
	}, printTickets)
}

func printTickets(table *command.Table, list ticketList) {
	if !list.Needed {
		table.Line("no service has session: tls: its servers need no keys")
	}
	if len(list.Keys) > 0 {
		table.Row("EPOCH", "MADE", "STATE")
	}
	at := func(t time.Time) string { return t.Format(time.RFC3339) }
	for _, key := range list.Keys {
		state := "read until " + at(key.Expires)
		switch {
		case key.Epoch == list.Current:
			state = "tickets are made by it"
		case key.Epoch > list.Current && !list.Due.IsZero():
			state = "read; used from " + at(list.Due)
		case key.Epoch > list.Current:
			state = "read"
		}
		table.Row(key.Epoch, at(key.Made), state)
	}
	for _, why := range list.Behind {
		table.Line("ticket use waits: %s", why)
	}
	for _, name := range list.Own {
		table.Line("agent %s was given a key of its own (--ticket-key)", name)
	}
}

// Ticket makes `ballast ctl ticket`.
func Ticket(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "ticket", Short: "Manage the keys of TLS session tickets"}
	request := &ballastv1.KeyRequest{}
	use := ask.Changing(c, &cobra.Command{Use: "use [EPOCH]", Short: "Issue tickets with another epoch's key (default: the next)"},
		ballastv1connect.FleetClient.UseTicketKey, func(args []string) (*ballastv1.KeyRequest, error) {
			if len(args) == 0 {
				return request, nil
			}
			epoch, err := strconv.ParseUint(args[0], 10, 32)
			if err != nil || epoch == 0 {
				return nil, command.Usage("epoch %q is not a number from 1 on", args[0])
			}
			request.Epoch = uint32(epoch)
			return request, nil
		})
	use.Flags().BoolVar(&request.Force, "force", false, "even if servers cannot read its tickets yet: sessions begin again there")
	revoke := &cobra.Command{Use: "revoke", Short: "Replace all keys: all sessions begin again"}
	ask.Changing(c, revoke, ballastv1connect.FleetClient.RevokeTicketKeys, func([]string) (*ballastv1.RevokeTicketKeysRequest, error) {
		known, err := ask.Fleet(c, revoke, ballastv1connect.FleetClient.ListTicketKeys, &ballastv1.ListTicketKeysRequest{})
		request := &ballastv1.RevokeTicketKeysRequest{}
		if keys := known.GetKeys(); len(keys) > 0 { // who does the same at the same time means the same
			request.Newest = keys[len(keys)-1].Epoch
		}
		return request, err
	})
	c.MayHarm(revoke)
	cmd.AddCommand(ListTickets(c), use, revoke)
	return cmd
}
