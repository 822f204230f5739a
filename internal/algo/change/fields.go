package change

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// field is one value of a service or a server, as a change to it is found, shown and carried over.
type field[T any] struct {
	name string
	text func(*T) string // equal texts mean equal values
	copy func(to, from *T)
}

var serviceFields = []field[model.Service]{
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
	{"health.check", func(s *model.Service) string { return s.Health.Check.String() }, func(to, from *model.Service) { to.Health.Check = from.Health.Check }},
	{"health.interval", func(s *model.Service) string { return s.Health.Interval.String() }, func(to, from *model.Service) { to.Health.Interval = from.Health.Interval }},
	{"health.timeout", func(s *model.Service) string { return s.Health.Timeout.String() }, func(to, from *model.Service) { to.Health.Timeout = from.Health.Timeout }},
	{"health.rise", func(s *model.Service) string { return itoa(s.Health.Rise) }, func(to, from *model.Service) { to.Health.Rise = from.Health.Rise }},
	{"health.fall", func(s *model.Service) string { return itoa(s.Health.Fall) }, func(to, from *model.Service) { to.Health.Fall = from.Health.Fall }},
	{"health.port", func(s *model.Service) string { return itoa(s.Health.Port) }, func(to, from *model.Service) { to.Health.Port = from.Health.Port }},
	{"health.path", func(s *model.Service) string { return strconv.Quote(s.Health.Path) }, func(to, from *model.Service) { to.Health.Path = from.Health.Path }},
	{"health.host", func(s *model.Service) string { return strconv.Quote(s.Health.Host) }, func(to, from *model.Service) { to.Health.Host = from.Health.Host }},
	{"health.service", func(s *model.Service) string { return strconv.Quote(s.Health.Service) }, func(to, from *model.Service) { to.Health.Service = from.Health.Service }},
	{"health.command", func(s *model.Service) string { return fmt.Sprintf("%q", s.Health.Command) }, func(to, from *model.Service) { to.Health.Command = slices.Clone(from.Health.Command) }},
	{"health.all_down", func(s *model.Service) string { return s.Health.AllDown.String() }, func(to, from *model.Service) { to.Health.AllDown = from.Health.AllDown }},
	{"health.deadline", func(s *model.Service) string { return s.Health.Deadline.String() }, func(to, from *model.Service) { to.Health.Deadline = from.Health.Deadline }},
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

// identity tells servers of a service apart: by id where cookies carry it, as a server under another id is another one to its
// connections; else by name, as such ids follow from the position in the list.
func identity(versions ...*model.Service) func(*model.Server) string {
	for _, s := range versions {
		if !s.Affinity.Cookies() {
			return func(server *model.Server) string { return "name " + server.Name }
		}
	}
	return func(server *model.Server) string { return "id " + itoa(server.ID) }
}

func serviceName(s *model.Service) string { return s.Name }

// index returns pointers to the elements of list by key.
func index[T any](list []T, key func(*T) string) map[string]*T {
	byKey := make(map[string]*T, len(list))
	for i := range list {
		byKey[key(&list[i])] = &list[i]
	}
	return byKey
}
