package serving

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/load"
	"github.com/ballast-lb/ballast/internal/model"
)

// By controllers it is known who goes by this host's load. By a file load balancers may do so, whatever it says.
func TestLoadIsReportedOftenWhereSomebodyDecidesByIt(t *testing.T) {
	here, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	idle, often := time.Duration(model.IdleLoadInterval), 250*time.Millisecond
	for name, c := range map[string]struct {
		byFile   bool
		change   func(*model.Service)
		interval time.Duration
		followed bool
	}{
		"a policy without load":     {change: func(*model.Service) {}, interval: idle},
		"by a file":                 {byFile: true, change: func(*model.Service) {}, interval: often, followed: true},
		"a policy that goes by it":  {change: func(s *model.Service) { s.Dispatch = model.DispatchAWFD }, interval: often, followed: true},
		"by estimates":              {change: func(s *model.Service) { s.Dispatch, s.Load.Source = model.DispatchAWFD, model.LoadEstimate }, interval: idle},
		"the server is drained":     {change: func(s *model.Service) { s.Servers[0].State = model.StateDraining }, interval: often},
		"another server is drained": {change: func(s *model.Service) { s.Servers[1].State = model.StateDraining }, interval: idle},
		"a longer interval":         {change: func(s *model.Service) { s.Load.Interval = model.Duration(5 * time.Second) }, interval: idle},
		"drained, a longer interval": {change: func(s *model.Service) {
			s.Load.Interval, s.Servers[0].State = model.Duration(5*time.Second), model.StateDraining
		}, interval: time.Second},
		"the host serves nothing":   {change: func(s *model.Service) { s.Servers = s.Servers[1:]; s.Dispatch = model.DispatchLCF }, interval: idle},
		"an endpoint may be silent": {change: func(s *model.Service) { s.Dispatch, s.Load.Source = model.DispatchAWRR, model.LoadEndpoint }, interval: often, followed: true},
		"an entry of before is drained": {change: func(s *model.Service) {
			s.Servers = append(s.Servers, model.Server{Name: "before", ID: 3, Address: here, State: model.StateDraining})
		}, interval: often},
	} {
		t.Run(name, func(t *testing.T) {
			service := model.NewService()
			service.Name, service.VIP, service.Ports = "web", netip.MustParseAddr("198.51.100.1"), []uint16{80}
			for i, address := range []netip.Addr{here, other} {
				server := model.NewServer()
				server.Name, server.ID, server.Address = address.String(), uint16(i+1), address
				service.Servers = append(service.Servers, server)
			}
			fleet := model.Fleet{Services: []model.Service{service}}
			fleet.ApplyDefaults()
			c.change(&fleet.Services[0])
			s := Serving{byFile: c.byFile, local: []netip.Addr{here}}
			s.count(&fleet)
			followed := len(s.Counted) > 0 && s.Counted[0].Followed
			if s.Interval != c.interval || followed != c.followed {
				t.Errorf("every %s, followed %t; want %s, %t", s.Interval, followed, c.interval, c.followed)
			}
		})
	}
}

// Where packets go to an application elsewhere, a count of this host's sockets is no load of it.
func TestConnectionsAtAddressesOfOthersAreNotCounted(t *testing.T) {
	own, absent := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")
	s := Serving{Counted: []load.Service{{Name: "own", VIP: own}, {Name: "pods", VIP: absent}, {Name: "both", VIP: own, MoreVIPs: []netip.Addr{absent}}}, Absent: []netip.Addr{absent}}
	for i, want := range []bool{false, true, true} {
		if one := s.Countable()[i]; one.Translated != want {
			t.Errorf("%s: %t", one.Name, one.Translated)
		}
	}
	if s.Counted[1].Translated {
		t.Error("the list itself has changed: an address that comes would not count")
	}
}
