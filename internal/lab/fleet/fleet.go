// Package fleet is the configuration of a lab's load balancers and agents, changed as an operator would: by editing it.
package fleet

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/model"
)

// Fleet is the file that all lbs and agents of a lab run by.
type Fleet struct {
	model.Fleet // but for its services
	Services    []*Service
}

// Service is one service.
type Service struct {
	model.Service
	CrossFamily bool // servers are of the other IP family than the VIP
}

// NewService makes a service of port 80 with Ballast's defaults.
func NewService(name, vip string) *Service {
	s := &Service{Service: model.NewService()}
	s.Name, s.VIP, s.Ports = name, netip.MustParseAddr(vip), []uint16{80}
	return s
}

// New makes a fleet of services with keys of its own.
func New(random *rand.Rand, services ...*Service) *Fleet {
	f := &Fleet{Services: services}
	f.Keys = model.Keys{Placement: RandomKey(random), Current: 1, Cookie: map[uint32][16]byte{1: RandomKey(random)}}
	return f
}

// RandomKey makes a key of placement or of an epoch.
func RandomKey(random *rand.Rand) (key [16]byte) {
	for i := range key {
		key[i] = byte(random.Uint32())
	}
	return key
}

// Target is the address of the first service.
func (f *Fleet) Target() string { return f.Services[0].Target() }

// Encode is the file's content.
func (f *Fleet) Encode() ([]byte, error) {
	whole := f.Fleet.Clone()
	for _, s := range f.Services {
		whole.Services = append(whole.Services, s.Clone())
	}
	whole.ApplyDefaults()
	return config.Marshal(whole)
}

// Add puts server i into a service. The id is i: never used again in one lab. Weight 0 is the default of Ballast, and for
// the scrubber, which serves nobody, it is 0.
func (s *Service) Add(name string, i int, address netip.Addr, weight uint16) {
	server := model.NewServer()
	server.Name, server.Address, server.ID = name, address, uint16(i)
	if weight != 0 || s.Table.Scrubber == name {
		server.Weight = weight
	}
	s.Servers = append(s.Servers, server)
}

// Target is the address that clients connect to.
func (s *Service) Target() string { return netip.AddrPortFrom(s.VIP, s.Ports[0]).String() }

// Drain ends new connections to server i.
func (s *Service) Drain(i int) { s.set(i, model.StateDraining) }

// Activate lets server i have new connections again.
func (s *Service) Activate(i int) { s.set(i, model.StateActive) }

// SwitchOff takes all packets from server i.
func (s *Service) SwitchOff(i int) { s.set(i, model.StateOff) }

func (s *Service) set(i int, state model.ServerState) {
	for at := range s.Servers {
		if s.Servers[at].ID == uint16(i) {
			s.Servers[at].State = state
		}
	}
}

// Remove takes server i out of a service.
func (s *Service) Remove(i int) {
	s.Servers = slices.DeleteFunc(s.Servers, func(server model.Server) bool { return server.ID == uint16(i) })
}
