package cli

import (
	"encoding"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/model"
)

// serviceField is a flag that puts its value into a request: what nobody gave is not in it.
type serviceField struct {
	request map[string]any
	key     string
	kind    string
	parse   func(text string) (any, error)
}

func (f *serviceField) String() string { return "" }
func (f *serviceField) Type() string   { return f.kind }

func (f *serviceField) Set(text string) error {
	value, err := f.parse(text)
	if err != nil {
		return err
	}
	f.request[f.key] = value
	return nil
}

// choice parses a T by its name.
func choice[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](text string) (any, error) {
	var value T
	err := P(&value).UnmarshalText([]byte(text))
	return value, err
}

func number(text string) (any, error) { return strconv.ParseUint(text, 10, 32) }

func ports(text string) (any, error) {
	var list []uint16
	for _, one := range strings.Split(text, ",") {
		port, err := strconv.ParseUint(strings.TrimSpace(one), 10, 16)
		if err != nil {
			return nil, fmt.Errorf("port %q: use numbers from 1 to 65535, separated by commas", one)
		}
		list = append(list, uint16(port))
	}
	return list, nil
}

// serviceFlags makes a flag of every field of a service; those that are given are in the map once the command runs.
func serviceFlags(cmd *cobra.Command) map[string]any {
	request := map[string]any{}
	add := func(flag, key, kind string, parse func(string) (any, error), usage string) {
		cmd.Flags().Var(&serviceField{request, key, kind, parse}, flag, usage)
	}
	add("vip", "vip", "address", choice[netip.Addr], "address that clients connect to, IPv4 or IPv6")
	add("port", "ports", "ports", ports, fmt.Sprintf("1 to %d ports, separated by commas", model.MaxPorts))
	add("protocol", "protocol", "name", choice[model.Protocol], "tcp or udp (default tcp)")
	add("dispatch", "dispatch", "name", choice[model.Dispatch],
		"who gets a new connection: hash, maglev, rr, wrr or p2c (default rr; maglev with affinity hash)")
	add("affinity", "affinity", "name", choice[model.Affinity], "how later packets find their server: cookie or hash (default cookie; hash for udp)")
	add("fallback", "fallback", "name", choice[model.Fallback],
		"what happens without a cookie: second-chance or hash (default second-chance; hash for udp and return through)")
	add("forward", "forward", "name", choice[model.Forward], "how packets reach servers: l2, ipip, gue or nat (default ipip; nat with return through)")
	add("return", "return", "name", choice[model.Return], "the way of answers: direct or through the load balancer (default direct)")
	add("cookie-bits", "cookie_bits", "bits", number,
		fmt.Sprintf("width of the cookie, %d to %d (default %d; return through: always %d)", model.MinCookieBits, model.MaxCookieBits, model.DirectCookieBits, model.ThroughBits))
	add("table-slots", "table_slots", "slots", number,
		fmt.Sprintf("size of the placement table: %s (default %d)", strings.Trim(fmt.Sprint(model.TableSizes()), "[]"), model.DefaultSlots))
	return request
}

func (c *control) serviceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service",
		Short: "Add, change or remove services",
		Long: `Add, change or remove services of a load balancer. Agents know services from their file only: a service with return: direct
must be in the agents' files, with the same choices, before clients are sent to it.`,
	}
	cmd.AddCommand(c.serviceAddCommand(), c.serviceSetCommand(), &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a service with its servers at once: its packets go to the host, its connections end",
		Long: `Remove a service with its servers at once. Packets for its address are no longer steered but go to the host, so connections
that it still has end. To end them gently, drain its servers first ("server drain") and wait until their counters stand still.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.do(cmd, http.MethodDelete, route(api.PathService, args[0]), nil)
		},
	})
	return cmd
}

// do carries out a change that is not a POST.
func (c *control) do(cmd *cobra.Command, method, path string, body any) error {
	var answer api.Changed
	err := c.client().Do(cmd.Context(), method, path, body, &answer)
	return c.changed(cmd, &answer, err)
}

func (c *control) serviceAddCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add NAME --vip ADDRESS --port PORT[,PORT]",
		Short: "Add a service, without servers at first",
		Long: `Add a service. It has no servers at first and drops what comes for it until "server add" gives it some. What is not given is
chosen as in the configuration file. A combination that cannot work is refused with the reason.`,
		Example: `  ballast ctl service add web --vip 198.51.100.10 --port 80,443
  ballast ctl service add dns --vip 2001:db8::53 --port 53 --protocol udp
  ballast ctl service add shop --vip 198.51.100.11 --port 443 --dispatch p2c --return through`,
		Args: cobra.ExactArgs(1),
	}
	request := serviceFlags(cmd)
	cmd.MarkFlagRequired("vip")
	cmd.MarkFlagRequired("port")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request["name"] = args[0]
		return c.do(cmd, http.MethodPost, api.PathServices, request)
	}
	return cmd
}

func (c *control) serviceSetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set NAME [--CHOICE VALUE]...",
		Short: "Change choices of a service; those not given stay",
		Long: `Change choices of a service. Those not given stay as they are: nothing falls back to a default. Several that only work together
are given together. A combination that cannot work is refused with the reason, and nothing changes.

Connections with cookies outlive changes of --dispatch, --fallback and --table-slots, and of --forward unless from or to nat. They
do not outlive changes of --vip, --protocol, --affinity and --return, or of --port for ports that are taken away. Agents read
these from their own files: change them there too, and say the same to the other load balancers. --cookie-bits can change
together with --vip only: connections carry cookies of the old width.`,
		Example: `  ballast ctl service set web --dispatch p2c
  ballast ctl service set web --affinity hash --dispatch maglev
  ballast ctl service set web --table-slots 16381`,
		Args: cobra.ExactArgs(1),
	}
	request := serviceFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(request) == 0 {
			return errors.New("nothing to change is given: see `ballast ctl service set --help`")
		}
		return c.do(cmd, http.MethodPatch, route(api.PathService, args[0]), request)
	}
	return cmd
}

// countersCommands are the counters, and their reset.
func (c *control) countersCommands() *cobra.Command {
	cmd := c.countersCommand()
	cmd.AddCommand(&cobra.Command{
		Use:   "reset",
		Short: "Set all counters of a load balancer to 0",
		Long: `Set all counters of services and servers of a load balancer to 0. Nothing that steers packets changes: estimates of open
connections (p2c) and servers' clocks (return: through) stay. Removed servers count as heard of now, so that they stay for
another --linger. Prometheus takes it for a restart.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.do(cmd, http.MethodDelete, api.PathCounters, nil)
		},
	})
	return cmd
}
