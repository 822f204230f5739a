// ctl explain.
package fleet

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/model"
)

// explanation is what one load balancer says, as --json prints it.
type explanation struct {
	Node       string      `json:"node"`
	Packet     string      `json:"packet"`          // what was asked about: flags and TSecr of a segment, or datagram
	Error      string      `json:"error,omitempty"` // why it does not say; all that follows is empty then
	Interface  string      `json:"interface,omitempty"`
	Service    string      `json:"service,omitempty"`
	Verdict    string      `json:"verdict,omitempty"`
	Rung       string      `json:"rung,omitempty"`
	Meaning    string      `json:"meaning,omitempty"`
	Action     string      `json:"action,omitempty"` // send, host, drop
	Server     *receiver   `json:"server,omitempty"`
	Unknown    *receiver   `json:"unknown,omitempty"` // of a SYN: the predecessor, where segments of connections that began elsewhere go there
	Stops      []string    `json:"stops,omitempty"`
	Runs       uint32      `json:"runs,omitempty"`
	Candidates []*receiver `json:"candidates,omitempty"`
	Path       string      `json:"path,omitempty"`
	Headers    []string    `json:"headers,omitempty"` // outermost first
	Notes      []string    `json:"notes,omitempty"`
}

type receiver struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	ID      uint32 `json:"id,omitempty"`
	Runs    uint32 `json:"runs,omitempty"` // of a candidate: of the dry runs
}

// asked is the packet of `ballast ctl explain`, as flags give it.
type asked struct {
	protocol, flags, id string
	tsval, tsecr        uint32
	bytes               int
}

// Explain makes `ballast ctl explain`.
func Explain(c *ask.Control) *cobra.Command {
	var a asked
	cmd := &cobra.Command{
		Use:   "explain CLIENT:PORT VIP:PORT",
		Short: "Show what each load balancer would do with a packet, and why",
		Long: `Show what each load balancer would do with a packet, and why: the verdict, the server, the frame that would leave.
Controllers ask all load balancers; a load balancer answers for itself. The packet is a SYN, unless flags say otherwise. Where a
service has a predecessor, the first line also says where segments of connections that began elsewhere go.

It is a dry run of the loaded program on a made-up packet: nothing is sent, counted or remembered, and no turn of a policy is
used. It costs a load balancer some 10 ms of one CPU, and at first a second or more to load; each answers 5 a second at most.

The packet is untagged, unfragmented, has TTL 64 and comes in by the node's first device. What depends on more is not known.
Where a policy draws, candidates are shown, with how many of the dry runs chose each. Servers are not asked.`,
		Example: `  ballast ctl explain 203.0.113.7:40312 198.51.100.10:443
  ballast ctl explain 203.0.113.7:40312 198.51.100.10:443 --tcp-flags ACK --tsecr 2913370127   # as ballast ctl trace shows it
  ballast ctl explain '[2001:db8::7]:40312' '[2001:db8::10]:443' --protocol udp -o json`,
	}
	flags := cmd.Flags()
	flags.Var(command.OneOf(&a.protocol, "tcp", "udp"), "protocol", "tcp or udp (default tcp)")
	flags.StringVar(&a.flags, "tcp-flags", "SYN", "flags of the TCP segment, separated by commas: SYN, ACK, PSH, FIN, RST")
	flags.Uint32Var(&a.tsval, "tsval", 1, "the segment's timestamp; 0 without --tsecr: it has none (a SYN has one by default, other segments do with --tsecr)")
	flags.Uint32Var(&a.tsecr, "tsecr", 0, "the timestamp that the segment echoes: it carries the cookie")
	flags.StringVar(&a.id, "connection-id", "", "UDP: destination connection id of a QUIC packet with a short header, in hexadecimal")
	flags.IntVar(&a.bytes, "bytes", 0, fmt.Sprintf("bytes of payload, up to %d", api.MadeUpPayload))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		packet, err := a.packet(cmd, args)
		if err != nil {
			return err
		}
		answer, err := ask.Fleet(c, cmd, ballastv1connect.FleetClient.ListExplanations, &ballastv1.ListExplanationsRequest{Packet: packet})
		if err != nil {
			return err
		}
		list := explanationsOf(answer, a.describe())
		if err := command.Print(cmd.OutOrStdout(), c.Output, list, printExplanations); err != nil {
			return err
		}
		if !slices.ContainsFunc(list, func(e explanation) bool { return e.Error == "" }) {
			return errors.New("no load balancer says what would become of the packet")
		}
		return nil
	}
	return cmd
}

func (a *asked) packet(cmd *cobra.Command, args []string) (*ballastv1.MadeUpPacket, error) {
	given := cmd.Flags().Changed
	p := &ballastv1.MadeUpPacket{Client: args[0], Vip: args[1], Protocol: a.protocol}
	if a.bytes < 0 || a.bytes > api.MadeUpPayload {
		return nil, command.Usage("--bytes %d: use 0 to %d", a.bytes, api.MadeUpPayload)
	}
	p.Payload = make([]byte, a.bytes)
	if a.protocol == model.ProtocolUDP.String() {
		for _, flag := range []string{"tcp-flags", "tsval", "tsecr"} {
			if given(flag) {
				return nil, command.Usage("--%s is of TCP: leave it or --protocol out", flag)
			}
		}
		id, err := hex.DecodeString(a.id)
		if err != nil || len(id) > 20 {
			return nil, command.Usage("--connection-id %q: give up to 20 bytes in hexadecimal", a.id)
		}
		if len(id) > 0 { // a short header (RFC 9000 17.3), and what encryption takes at the least
			p.Payload = slices.Concat([]byte{0x40}, id, make([]byte, max(a.bytes, 21)))
		}
	} else {
		if a.id != "" {
			return nil, command.Usage("--connection-id is of QUIC: give --protocol udp as well")
		}
		for name := range strings.SplitSeq(a.flags, ",") {
			bit := slices.Index(model.TCPFlags, strings.ToUpper(strings.TrimSpace(name)))
			if bit < 0 {
				return nil, command.Usage("--tcp-flags %s: %q is none of %s", a.flags, name, strings.Join(model.TCPFlags, ", "))
			}
			p.TcpFlags |= 1 << bit
		}
		if given("tsecr") || a.tsval != 0 && (p.TcpFlags&model.TCPSyn != 0 || given("tsval")) {
			p.Tsval, p.Tsecr = &a.tsval, &a.tsecr
		}
	}
	if _, err := api.MadeUpFromProto(p); err != nil {
		return nil, command.Usage("%w", err)
	}
	return p, nil
}

// describe names the packet, so that nobody takes an answer for that to another one.
func (a *asked) describe() string {
	switch {
	case a.protocol == model.ProtocolUDP.String():
		return "datagram"
	case a.tsecr != 0:
		return fmt.Sprintf("%s with TSecr %d", strings.ToUpper(a.flags), a.tsecr)
	}
	return strings.ToUpper(a.flags)
}

func explanationsOf(a *ballastv1.ListExplanationsResponse, packet string) []explanation {
	list := []explanation{}
	for _, e := range a.GetExplanations() {
		one := explanation{Node: e.Node, Packet: packet, Error: e.Error, Interface: e.Interface, Service: e.Service, Verdict: e.Verdict, Rung: e.Rung, Meaning: e.Meaning,
			Action: e.Action, Server: receiverOf(e.Server), Unknown: receiverOf(e.Unknown), Stops: e.Stops, Runs: e.Runs, Path: e.Path, Headers: e.Headers, Notes: e.Notes}
		for _, c := range e.Candidates {
			one.Candidates = append(one.Candidates, receiverOf(c))
		}
		list = append(list, one)
	}
	return list
}

func receiverOf(c *ballastv1.Chosen) *receiver {
	if c == nil {
		return nil
	}
	return &receiver{c.Name, c.Address, c.Id, c.Runs}
}

func (r *receiver) String() string {
	if r.ID == 0 {
		return fmt.Sprintf("%s (%s)", r.Name, r.Address)
	}
	return fmt.Sprintf("%s (%s, id %d)", r.Name, r.Address, r.ID)
}

// candidatesShown is how many candidates of a policy a table names.
const candidatesShown = 10

func printExplanations(table *command.Table, list []explanation) {
	if len(list) == 0 {
		table.Line("no load balancer is connected")
	}
	for i := range list {
		if i > 0 {
			table.Line("")
		}
		list[i].print(table)
	}
}

func (e *explanation) print(table *command.Table) {
	if e.Error != "" {
		table.Line("%s does not say: %s", e.Node, e.Error)
		return
	}
	fate := map[string]string{"drop": "dropped", "host": "passed to the host's own stack", "send": "sent back or on, to no server"}[e.Action]
	switch {
	case e.Action == "send" && e.Server != nil && len(e.Candidates) > 0:
		fate = "sent to one of the candidates, such as " + e.Server.String()
	case e.Action == "send" && e.Server != nil:
		fate = "sent to " + e.Server.String()
	case e.Server != nil:
		fate += ", on its way to " + e.Server.String()
	}
	if e.Service != "" {
		fate += " of service " + e.Service
	}
	if e.Unknown != nil {
		fate += "; segments of connections that began elsewhere: sent to " + e.Unknown.String()
	}
	table.Line("%s: %s %s", e.Node, e.Packet, fate)
	line := func(name, text string) {
		if text != "" {
			table.Line("  %-10s %s", name, text)
		}
	}
	line("verdict", e.Verdict+": "+e.Meaning)
	line("rung", e.Rung)
	line("then", strings.Join(e.Stops, ", "))
	for i, c := range e.Candidates {
		if i == candidatesShown {
			line("", fmt.Sprintf("and %d more", len(e.Candidates)-i))
			break
		}
		line(map[bool]string{true: "candidates"}[i == 0], fmt.Sprintf("%s in %d of %d dry runs", c, c.Runs, e.Runs))
	}
	line("in by", e.Interface)
	line("path", e.Path)
	for i, header := range e.Headers {
		line(map[bool]string{true: "frame"}[i == 0], header)
	}
	for i, note := range e.Notes {
		line(map[bool]string{true: "note"}[i == 0], note)
	}
}
