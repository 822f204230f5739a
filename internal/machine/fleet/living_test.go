package fleet

import (
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

// Promise: A file that has lost a service with connections, or more than a third of the servers of one, is not applied unless that is allowed.
func TestAFileThatIsCutOffIsSeenByWhatItLoses(t *testing.T) {
	service := func(name string, servers ...string) model.Service {
		s := model.NewService()
		s.Name, s.Protocol, s.Affinity = name, model.ProtocolTCP, model.AffinityCookie
		s.VIP = mustParse(t, minimal).Services[0].VIP
		s.Ports = []uint16{uint16(len(name))}
		for _, server := range servers {
			state := model.StateActive
			if strings.HasPrefix(server, "-") {
				state = model.StateDraining
			}
			id := uint16(server[len(server)-1])
			s.Servers = append(s.Servers, model.Server{Name: server, ID: id, Weight: 1, State: state})
		}
		return s
	}
	fleet := func(services ...model.Service) *model.Fleet { return &model.Fleet{Services: services} }
	lives := func(n uint64, known bool) func(string, uint16) Connections {
		return func(_ string, id uint16) Connections {
			if id == OfRemoved {
				return Connections{Known: true, Exact: true}
			}
			return Connections{Live: n, Known: known, Exact: true}
		}
	}
	for name, test := range map[string]struct {
		a, b   *model.Fleet
		living func(string, uint16) Connections
		want   string
	}{
		"nothing goes":           {fleet(service("a", "1")), fleet(service("a", "1")), lives(5, true), ""},
		"a service":              {fleet(service("a", "1", "2"), service("bb", "1")), fleet(service("bb", "1")), lives(5, true), "service a goes, with 10 connections"},
		"one that nobody counts": {fleet(service("a", "1")), fleet(), lives(0, false), "service a goes, with connections that nobody counts"},
		"one without any":        {fleet(service("a", "1")), fleet(), lives(0, true), ""},
		"one without servers":    {fleet(service("a")), fleet(), lives(0, false), ""},
		"another name":           {fleet(service("a", "1")), fleet(func() model.Service { s := service("bb", "1"); s.Ports = []uint16{1}; return s }()), lives(5, true), ""},
		"a third":                {fleet(service("a", "1", "2", "3")), fleet(service("a", "1", "2")), lives(0, true), ""},
		"more":                   {fleet(service("a", "1", "2", "3", "4")), fleet(service("a", "1", "2")), lives(0, true), "service a: 2 of its 4 servers that take new connections go"},
		"one of two":             {fleet(service("a", "1", "2")), fleet(service("a", "1")), lives(0, true), "service a: 1 of its 2 servers that take new connections go"},
		"a drained one of two":   {fleet(service("a", "1", "-2")), fleet(service("a", "1")), lives(0, true), ""},
		"one of two drains":      {fleet(service("a", "1", "2")), fleet(service("a", "1", "-2")), lives(5, true), ""},
		"one goes, one drains":   {fleet(service("a", "1", "2", "3")), fleet(service("a", "1", "-2")), lives(5, true), ""},
		"others in their place":  {fleet(service("a", "1", "2")), fleet(service("a", "3", "4")), lives(9, true), ""},
	} {
		if have := strings.Join(Removals(test.a, test.b, test.living), "; "); have != test.want {
			t.Errorf("%s: %q, want %q", name, have, test.want)
		}
	}
}
