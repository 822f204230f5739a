package cli

import (
	"encoding"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/model"
)

// serviceField is a flag that puts its value into a request: what nobody gave is not in it.
type serviceField struct {
	kind string
	set  func(text string) error
}

func (f *serviceField) String() string        { return "" }
func (f *serviceField) Type() string          { return f.kind }
func (f *serviceField) Set(text string) error { return f.set(text) }

// word is a choice by its name, which a T knows.
func word[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](field *string) *serviceField {
	return &serviceField{"name", func(text string) error {
		var value T
		*field = text
		return P(&value).UnmarshalText([]byte(text))
	}}
}

func count(field *uint32, kind string) *serviceField {
	return &serviceField{kind, func(text string) error {
		value, err := strconv.ParseUint(text, 10, 32)
		*field = uint32(value)
		if err == nil && value == 0 {
			err = errors.New("0 is out of range")
		}
		return err
	}}
}

// number may be 0, which is not the same as nothing.
func number(field **uint32, kind string) *serviceField {
	return &serviceField{kind, func(text string) error {
		parsed, err := strconv.ParseUint(text, 10, 32)
		value := uint32(parsed)
		*field = &value
		return err
	}}
}

func words(field *string) *serviceField {
	return &serviceField{"text", func(text string) error {
		if *field = text; text == "" {
			return errors.New("empty")
		}
		return nil
	}}
}

func span(field **durationpb.Duration) *serviceField {
	return &serviceField{"duration", func(text string) error {
		var d model.Duration
		err := d.UnmarshalText([]byte(text))
		*field = durationpb.New(time.Duration(d))
		return err
	}}
}

func ports(field *[]uint32) *serviceField {
	return &serviceField{"ports", func(text string) error {
		*field = nil
		for _, one := range strings.Split(text, ",") {
			port, err := strconv.ParseUint(strings.TrimSpace(one), 10, 16)
			if err != nil {
				return fmt.Errorf("port %q: use numbers from 1 to 65535, separated by commas", one)
			}
			*field = append(*field, uint32(port))
		}
		return nil
	}}
}

// serviceFlags makes a flag of every field of a service; those that are given are in the service once the command runs.
func serviceFlags(cmd *cobra.Command) *ballastv1.Service {
	s := &ballastv1.Service{}
	add := func(flag string, field *serviceField, usage string) { cmd.Flags().Var(field, flag, usage) }
	add("vip", &serviceField{"address", func(text string) error {
		s.Vip = text
		_, err := netip.ParseAddr(text)
		return err
	}}, "address that clients connect to, IPv4 or IPv6")
	add("port", ports(&s.Ports), fmt.Sprintf("1 to %d ports, separated by commas", model.MaxPorts))
	add("protocol", word[model.Protocol](&s.Protocol), "tcp or udp (default tcp)")
	add("dispatch", word[model.Dispatch](&s.Dispatch),
		"who gets a new connection: hash, maglev, rr, wrr, p2c, least, awrr, awfd, wcmp or lcf (default rr; maglev with affinity hash)")
	add("affinity", word[model.Affinity](&s.Affinity), "how later packets find their server: cookie, table, local-table or hash (default cookie; hash for udp)")
	add("fallback", word[model.Fallback](&s.Fallback),
		"what happens without a cookie: second-chance or hash (default second-chance; hash for udp and return through)")
	add("forward", word[model.Forward](&s.Forward), "how packets reach servers: l2, ipip, gue or nat (default ipip; nat with return through)")
	add("return", word[model.Return](&s.Return), "the way of answers: direct or through the load balancer (default direct)")
	add("cookie-bits", count(&s.CookieBits, "bits"),
		fmt.Sprintf("width of the cookie, %d to %d (default %d; return through: always %d)", model.MinCookieBits, model.MaxCookieBits, model.DirectCookieBits, model.ThroughBits))
	add("table-slots", count(&s.TableSlots, "slots"),
		fmt.Sprintf("size of the placement table: %s (default %d)", strings.Trim(fmt.Sprint(model.TableSizes()), "[]"), model.DefaultSlots))
	table, load, health := &ballastv1.Table{}, &ballastv1.Load{}, &ballastv1.Health{}
	tableFlags(add, table)
	loadFlags(add, load)
	healthFlags(add, health, "the first of the service")
	add("unhealthy-deadline", span(&health.Deadline), "cut the connections of a server that is unhealthy for that long; 0s: never (default 0s)")
	cmd.PreRun = func(*cobra.Command, []string) {
		if proto.Size(table) > 0 {
			s.Table = table
		}
		if proto.Size(load) > 0 {
			s.Load = load
		}
		if proto.Size(health) > 0 {
			s.Health = health
		}
	}
	return s
}

func tableFlags(add func(flag string, field *serviceField, usage string), table *ballastv1.Table) {
	add("table-entries", count(&table.Entries, "number"), fmt.Sprintf("affinity table: connections that have an entry, %d to %d (default %d)", model.MinEntries, model.MaxEntries, model.DefaultEntries))
	add("table-index-bits", count(&table.IndexBits, "bits"), fmt.Sprintf("affinity table: of the cookie, for the entry's index, 1 to %d (default %d)", model.MaxIndexBits, model.DefaultIndexBits))
	add("table-node-bits", number(&table.NodeBits, "bits"), fmt.Sprintf("affinity table: of the cookie, for the second tier's nodes, 0 to %d (default 0; %d if there are any)", model.MaxNodeBits, model.DefaultNodeBits))
	add("table-idle-timeout", span(&table.IdleTimeout), fmt.Sprintf("affinity table: free the entry of a connection that is silent for so long (default %s)", model.DefaultIdleTimeout))
	add("table-packet-limit", number(&table.PacketLimit, "packets"), fmt.Sprintf("affinity table: of one connection in a second, 0 (all) to %d (default 0)", model.MaxPacketLimit))
	add("table-scrubber", &serviceField{"server", func(text string) error {
		table.Scrubber = &text
		return nil
	}}, "affinity table: server of weight 0 that suspects' packets visit first, empty: none (default none)")
}

func loadFlags(add func(flag string, field *serviceField, usage string), load *ballastv1.Load) {
	add("load-source", word[model.LoadSource](&load.Source), "what awrr, awfd and lcf go by: estimate, connections, cpu or endpoint (default connections)")
	add("load-interval", span(&load.Interval), "between reports of load and updates of weights (default 250ms)")
	add("load-classes", number(&load.Classes, "number"), fmt.Sprintf("awfd: classes of servers, 0 to %d (default %d)", model.MaxClasses, model.DefaultClasses))
	add("queue-limit", count(&load.QueueLimit, "requests"), "requests that a server holds before it refuses (default 128)")
	add("load-endpoint", words(&load.Endpoint), "URL to ask for the load, like http://:8080/load")
}

func healthFlags(add func(flag string, field *serviceField, usage string), health *ballastv1.Health, ownPort string) {
	add("check", word[model.Check](&health.Check), "how health is found out: none, tcp, http, https, tls, grpc or exec (default none)")
	add("check-interval", span(&health.Interval), "between two checks of a server (default 2s)")
	add("check-timeout", span(&health.Timeout), "of one check (default 1s)")
	add("check-rise", count(&health.Rise, "number"), "successes in a row until a server is healthy again (default 2)")
	add("check-fall", count(&health.Fall, "number"), "failures in a row until a server is unhealthy (default 3)")
	add("check-port", count(&health.Port, "port"), "port to check (default: "+ownPort+")")
	add("check-path", words(&health.Path), "http, https: path to ask for (default /)")
	add("check-host", words(&health.Host), "http: Host header; https, tls, grpc: also the name in the certificate")
	add("check-service", words(&health.Service), "grpc: service name")
	add("check-command", &serviceField{"words", func(text string) error {
		if health.Command = strings.Fields(text); len(health.Command) == 0 {
			return errors.New("empty")
		}
		return nil
	}}, "exec: program and arguments, separated by spaces")
	add("all-down", word[model.AllDown](&health.AllDown), "who gets new connections when nobody is healthy: keep (those before), all or none (default keep)")
}

func (c *control) serviceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service",
		Short: "Add, change or remove services",
		Long: `Add, change or remove services. Agents without controllers know services from their file only: a service with return: direct must
be in the agents' files, with the same choices, before clients are sent to it.`,
	}
	set := c.serviceSetCommand()
	remove := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a service with its servers at once: its packets go to the host, its connections end",
		Long: `Remove a service with its servers at once. Packets for its address are no longer steered but go to the host, so connections
that it still has end. To end them gently, drain its servers first ("server drain --wait").`,
		Example: `  ballast ctl service remove shop`,
		Args:    takes("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.change(cmd, func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
				return fleet.RemoveService(cmd.Context(), &ballastv1.RemoveServiceRequest{Service: args[0], Force: force})
			})
		},
	}
	c.mayHarm(set, remove)
	cmd.AddCommand(c.serviceAddCommand(), set, remove)
	return cmd
}

// putService sends a service that exists, or that does not.
func (c *control) putService(cmd *cobra.Command, s *ballastv1.Service, exists bool) error {
	return c.change(cmd, func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
		return fleet.PutService(cmd.Context(), &ballastv1.PutServiceRequest{Service: s, Exists: &exists, Force: force})
	})
}

func (c *control) serviceAddCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add NAME --vip ADDRESS --port PORT[,PORT]",
		Short: "Add a service, without servers at first",
		Long: `Add a service. It has no servers at first and drops what comes for it until "server add" gives it some. What is not given is
chosen as in the configuration file. A combination that cannot work is refused with the reason.`,
		Example: `  ballast ctl service add web --vip 198.51.100.10 --port 80,443
  ballast ctl service add dns --vip 2001:db8::53 --port 53 --protocol udp
  ballast ctl service add shop --vip 198.51.100.11 --port 443 --dispatch awfd --check http --check-path /healthz
  ballast ctl service add nat --vip 198.51.100.12 --port 443 --dispatch p2c --return through`,
		Args: takes("NAME"),
	}
	s := serviceFlags(cmd)
	cmd.MarkFlagRequired("vip")
	cmd.MarkFlagRequired("port")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s.Name = args[0]
		return c.putService(cmd, s, false)
	}
	return cmd
}

func (c *control) serviceSetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set NAME [--CHOICE VALUE]...",
		Short: "Change choices of a service; those not given stay",
		Long: `Change choices of a service. Those not given stay as they are: nothing falls back to a default. Several that only work together
are given together. A combination that cannot work is refused with the reason, and nothing changes. Another --check or
--load-source leaves behind what only the one before had use for.

Connections with cookies outlive changes of --dispatch, --fallback and --table-slots, and of --forward unless from or to nat. They
do not outlive changes of --vip, --protocol, --affinity and --return, or of --port for ports that are taken away; but from --affinity
cookie to table they do. Agents without controllers read these from their own files: change them there too, and say the same to
the other load balancers. --cookie-bits, --table-index-bits and --table-node-bits can change together with --vip only: connections
carry cookies of the old widths.

What connections do not outlive, and --affinity cookie to table, which cannot be taken back while the service keeps its --vip, is asked about
first; elsewhere than at a terminal it needs --yes.`,
		Example: `  ballast ctl service set web --dispatch p2c
  ballast ctl service set web --affinity hash --dispatch maglev
  ballast ctl service set web --dispatch awfd --load-source cpu --load-interval 100ms
  ballast ctl service set web --affinity table --table-entries 1048576
  ballast ctl service set web --check tcp --all-down none`,
		Args: takes("NAME"),
	}
	s := serviceFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if proto.Size(s) == 0 {
			return usage("nothing to change is given: see `ballast ctl service set --help`")
		}
		s.Name = args[0]
		return c.putService(cmd, s, true)
	}
	return cmd
}
