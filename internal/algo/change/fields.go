package change

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// field is one value of a service, a server or a node, as a change to it is found, shown and carried over.
type field[T any] struct {
	name string
	text func(*T) string // equal texts mean equal values
	copy func(to, from *T)
}

var serviceFields = append([]field[model.Service]{
	{"vip", func(s *model.Service) string { return s.VIP.String() }, func(to, from *model.Service) { to.VIP = from.VIP }},
	{"protocol", func(s *model.Service) string { return s.Protocol.String() }, func(to, from *model.Service) { to.Protocol = from.Protocol }},
	{"ports", func(s *model.Service) string { return fmt.Sprint(s.Ports) }, func(to, from *model.Service) { to.Ports = slices.Clone(from.Ports) }},
	{"dispatch", func(s *model.Service) string { return s.Dispatch.String() }, func(to, from *model.Service) { to.Dispatch = from.Dispatch }},
	{"affinity", func(s *model.Service) string { return s.Affinity.String() }, func(to, from *model.Service) { to.Affinity = from.Affinity }},
	{"fallback", func(s *model.Service) string { return s.Fallback.String() }, func(to, from *model.Service) { to.Fallback = from.Fallback }},
	{"cookie_bits", func(s *model.Service) string { return itoa(s.CookieBits) }, func(to, from *model.Service) { to.CookieBits = from.CookieBits }},
	{"forward", func(s *model.Service) string { return s.Forward.String() }, func(to, from *model.Service) { to.Forward = from.Forward }},
	{"return", func(s *model.Service) string { return s.Return.String() }, func(to, from *model.Service) { to.Return = from.Return }},
	{"table_slots", func(s *model.Service) string { return itoa(s.TableSlots) }, func(to, from *model.Service) { to.TableSlots = from.TableSlots }},
	{"load.source", func(s *model.Service) string { return s.Load.Source.String() }, func(to, from *model.Service) { to.Load.Source = from.Load.Source }},
	{"load.interval", func(s *model.Service) string { return s.Load.Interval.String() }, func(to, from *model.Service) { to.Load.Interval = from.Load.Interval }},
	{"load.classes", func(s *model.Service) string { return itoa(s.Load.Classes) }, func(to, from *model.Service) { to.Load.Classes = from.Load.Classes }},
	{"load.queue_limit", func(s *model.Service) string { return itoa(s.Load.QueueLimit) }, func(to, from *model.Service) { to.Load.QueueLimit = from.Load.QueueLimit }},
	{"load.endpoint", func(s *model.Service) string { return strconv.Quote(s.Load.Endpoint) }, func(to, from *model.Service) { to.Load.Endpoint = from.Load.Endpoint }},
	{"table.entries", func(s *model.Service) string { return itoa(s.Table.Entries) }, func(to, from *model.Service) { to.Table.Entries = from.Table.Entries }},
	{"table.index_bits", func(s *model.Service) string { return itoa(s.Table.IndexBits) }, func(to, from *model.Service) { to.Table.IndexBits = from.Table.IndexBits }},
	{"table.node_bits", func(s *model.Service) string { return itoa(s.Table.NodeBits) }, func(to, from *model.Service) { to.Table.NodeBits = from.Table.NodeBits }},
	{"table.idle_timeout", func(s *model.Service) string { return s.Table.IdleTimeout.String() }, func(to, from *model.Service) { to.Table.IdleTimeout = from.Table.IdleTimeout }},
	{"table.packet_limit", func(s *model.Service) string { return itoa(s.Table.PacketLimit) }, func(to, from *model.Service) { to.Table.PacketLimit = from.Table.PacketLimit }},
	{"table.scrubber", func(s *model.Service) string { return strconv.Quote(s.Table.Scrubber) }, func(to, from *model.Service) { to.Table.Scrubber = from.Table.Scrubber }},
}, healthFields("health.", func(s *model.Service) *model.Health { return &s.Health })...)

// fleetFields are those of the whole fleet that are told apart by nothing else.
var fleetFields = append(healthFields("node_health: ", func(f *model.Fleet) *model.Health { return &f.NodeHealth }),
	field[model.Fleet]{"tunnels_from", func(f *model.Fleet) string { return fmt.Sprint(f.TunnelsFrom) }, func(to, from *model.Fleet) { to.TunnelsFrom = slices.Clone(from.TunnelsFrom) }})

// healthFields are those of the health that of returns.
func healthFields[T any](prefix string, of func(*T) *model.Health) []field[T] {
	one := func(name string, text func(*model.Health) string, copy func(to, from *model.Health)) field[T] {
		return field[T]{prefix + name, func(t *T) string { return text(of(t)) }, func(to, from *T) { copy(of(to), of(from)) }}
	}
	return []field[T]{
		one("check", func(h *model.Health) string { return h.Check.String() }, func(to, from *model.Health) { to.Check = from.Check }),
		one("interval", func(h *model.Health) string { return h.Interval.String() }, func(to, from *model.Health) { to.Interval = from.Interval }),
		one("timeout", func(h *model.Health) string { return h.Timeout.String() }, func(to, from *model.Health) { to.Timeout = from.Timeout }),
		one("rise", func(h *model.Health) string { return itoa(h.Rise) }, func(to, from *model.Health) { to.Rise = from.Rise }),
		one("fall", func(h *model.Health) string { return itoa(h.Fall) }, func(to, from *model.Health) { to.Fall = from.Fall }),
		one("port", func(h *model.Health) string { return itoa(h.Port) }, func(to, from *model.Health) { to.Port = from.Port }),
		one("path", func(h *model.Health) string { return strconv.Quote(h.Path) }, func(to, from *model.Health) { to.Path = from.Path }),
		one("host", func(h *model.Health) string { return strconv.Quote(h.Host) }, func(to, from *model.Health) { to.Host = from.Host }),
		one("service", func(h *model.Health) string { return strconv.Quote(h.Service) }, func(to, from *model.Health) { to.Service = from.Service }),
		one("command", func(h *model.Health) string { return fmt.Sprintf("%q", h.Command) }, func(to, from *model.Health) { to.Command = slices.Clone(from.Command) }),
		one("all_down", func(h *model.Health) string { return h.AllDown.String() }, func(to, from *model.Health) { to.AllDown = from.AllDown }),
		one("deadline", func(h *model.Health) string { return h.Deadline.String() }, func(to, from *model.Health) { to.Deadline = from.Deadline }),
	}
}

var nodeFields = []field[model.Node]{
	{"tier", func(n *model.Node) string { return n.Tier.String() }, func(to, from *model.Node) { to.Tier = from.Tier }},
	{"address", func(n *model.Node) string { return n.Address.String() }, func(to, from *model.Node) { to.Address = from.Address }},
	{"id", func(n *model.Node) string { return itoa(n.ID) }, func(to, from *model.Node) { to.ID = from.ID }},
	{"state", func(n *model.Node) string { return n.State.String() }, func(to, from *model.Node) { to.State = from.State }},
}

var serverFields = []field[model.Server]{
	{"name", func(s *model.Server) string { return s.Name }, func(to, from *model.Server) { to.Name = from.Name }},
	{"address", func(s *model.Server) string { return s.Address.String() }, func(to, from *model.Server) { to.Address = from.Address }},
	{"port", func(s *model.Server) string { return itoa(s.Port) }, func(to, from *model.Server) { to.Port = from.Port }},
	{"id", func(s *model.Server) string { return itoa(s.ID) }, func(to, from *model.Server) { to.ID = from.ID }},
	{"weight", func(s *model.Server) string { return itoa(s.Weight) }, func(to, from *model.Server) { to.Weight = from.Weight }},
	{"state", func(s *model.Server) string { return s.State.String() }, func(to, from *model.Server) { to.State = from.State }},
	{"deadline", func(s *model.Server) string { return deadline(s.Deadline) }, func(to, from *model.Server) { to.Deadline = from.Deadline }},
}

func deadline(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

func itoa[N uint8 | uint16 | uint32](n N) string { return strconv.FormatUint(uint64(n), 10) }

// identity tells servers of a service apart: by id where connections are remembered by it, as a server under another id is another one to its
// connections; else by name, as such ids follow from the position in the list.
func identity(versions ...*model.Service) func(*model.Server) string {
	for _, s := range versions {
		if !s.Affinity.KeepsIDs() {
			return func(server *model.Server) string { return "name " + server.Name }
		}
	}
	return func(server *model.Server) string { return "id " + itoa(server.ID) }
}

func serviceName(s *model.Service) string { return s.Name }

func nodeName(n *model.Node) string { return n.Name }

// index returns pointers to the elements of list by key.
func index[T any](list []T, key func(*T) string) map[string]*T {
	byKey := make(map[string]*T, len(list))
	for i := range list {
		byKey[key(&list[i])] = &list[i]
	}
	return byKey
}
