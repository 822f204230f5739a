package fleet

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

// Promise: A predecessor that connections still go to does not leave unless that is allowed.
func TestConnectionsThatLoseTheirPredecessorAreNamed(t *testing.T) {
	service := func(name string, predecessors ...string) model.Service {
		s := model.NewService()
		s.Name, s.VIP, s.Ports = name, mustParse(t, minimal).Services[0].VIP, []uint16{80}
		for _, address := range predecessors {
			s.Predecessor.Addresses = append(s.Predecessor.Addresses, netip.MustParseAddr(address))
		}
		return s
	}
	fleet := func(services ...model.Service) *model.Fleet { return &model.Fleet{Services: services} }
	const goes = "service web: its predecessor goes, and "
	for name, test := range map[string]struct {
		a, b *model.Fleet
		had  Connections
		want string
	}{
		"it goes":                       {fleet(service("web", "10.0.0.5")), fleet(service("web")), Connections{Live: 7, Known: true}, goes + "about 7 connections of the last minute with it"},
		"another comes":                 {fleet(service("web", "10.0.0.5")), fleet(service("web", "10.0.0.6")), Connections{Live: 1, Known: true}, goes + "about 1 connection of the last minute with it"},
		"nobody counts":                 {fleet(service("web", "10.0.0.5")), fleet(service("web")), Connections{}, goes + "connections that nobody counts of the last minute with it"},
		"it is idle":                    {fleet(service("web", "10.0.0.5")), fleet(service("web")), Connections{Known: true}, ""},
		"one of two goes":               {fleet(service("web", "10.0.0.5", "10.0.0.6")), fleet(service("web", "10.0.0.6")), Connections{Live: 7, Known: true}, ""},
		"it stays":                      {fleet(service("web", "10.0.0.5")), fleet(service("web", "10.0.0.5")), Connections{Live: 7, Known: true}, ""},
		"there was none":                {fleet(service("web")), fleet(), Connections{}, ""},
		"a service without servers":     {fleet(service("web", "10.0.0.5")), fleet(), Connections{Live: 7, Known: true}, goes + "about 7 connections of the last minute with it"},
		"the service gets another name": {fleet(service("web", "10.0.0.5")), fleet(service("shop", "10.0.0.5")), Connections{Live: 7, Known: true}, ""},
		"and its predecessor goes":      {fleet(service("web", "10.0.0.5")), fleet(service("shop")), Connections{Live: 7, Known: true}, goes + "about 7 connections of the last minute with it"},
	} {
		if have := strings.Join(Orphaned(test.a, test.b, func(string) Connections { return test.had }), "; "); have != test.want {
			t.Errorf("%s: %q, want %q", name, have, test.want)
		}
	}
}
