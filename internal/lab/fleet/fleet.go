// Package fleet is the configuration of a lab's load balancers and agents, changed as an operator would: by editing it.
package fleet

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"

	"github.com/goccy/go-yaml"
)

// Fleet is the file that all lbs and agents of a lab run by.
type Fleet struct {
	Keys       Keys       `yaml:"keys"`
	Nodes      []Node     `yaml:"nodes,omitempty"`
	NodeHealth *Health    `yaml:"node_health,omitempty"`
	Services   []*Service `yaml:"services"`
}

// Keys are the keys of placement and of cookies, in hexadecimal.
type Keys struct {
	Placement string            `yaml:"placement"`
	Current   uint32            `yaml:"current"`
	Cookie    map[uint32]string `yaml:"cookie"`
}

// Service is one service; empty fields take Ballast's defaults.
type Service struct {
	Name       string   `yaml:"name"`
	VIP        string   `yaml:"vip"`
	Protocol   string   `yaml:"protocol,omitempty"`
	Ports      []uint16 `yaml:"ports"`
	Dispatch   string   `yaml:"dispatch,omitempty"`
	Affinity   string   `yaml:"affinity,omitempty"`
	Fallback   string   `yaml:"fallback,omitempty"`
	CookieBits uint8    `yaml:"cookie_bits,omitempty"`
	Forward    string   `yaml:"forward,omitempty"`
	Return     string   `yaml:"return,omitempty"`
	TableSlots uint32   `yaml:"table_slots,omitempty"`
	Table      *Table   `yaml:"table,omitempty"`
	Load       *Load    `yaml:"load,omitempty"`
	Health     *Health  `yaml:"health,omitempty"`
	Servers    []Member `yaml:"servers"`

	CrossFamily bool `yaml:"-"` // servers are of the other IP family than the VIP
}

// Load is how the load of a service is measured.
type Load struct {
	Source   string `yaml:"source"`
	Interval string `yaml:"interval"`
	Classes  *int   `yaml:"classes,omitempty"`
	Endpoint string `yaml:"endpoint,omitempty"`
}

// Health is how the servers of a service are checked.
type Health struct {
	Check    string `yaml:"check"`
	Port     uint16 `yaml:"port,omitempty"`
	Path     string `yaml:"path,omitempty"`
	Interval string `yaml:"interval"`
	Timeout  string `yaml:"timeout"`
	Rise     int    `yaml:"rise"`
	Fall     int    `yaml:"fall"`
	AllDown  string `yaml:"all_down,omitempty"`
	Deadline string `yaml:"deadline,omitempty"`
}

// Table is how a service with affinity table keeps its connections.
type Table struct {
	Entries     uint32 `yaml:"entries,omitempty"`
	IdleTimeout string `yaml:"idle_timeout,omitempty"`
	PacketLimit uint32 `yaml:"packet_limit,omitempty"`
	Scrubber    string `yaml:"scrubber,omitempty"`
}

// Member is a server of a service.
type Member struct {
	Name    string  `yaml:"name"`
	Address string  `yaml:"address"`
	ID      uint16  `yaml:"id"`
	Weight  *uint16 `yaml:"weight,omitempty"`
	State   string  `yaml:"state,omitempty"`
}

// Node is a load balancer of one of two tiers.
type Node struct {
	Name    string `yaml:"name"`
	Tier    string `yaml:"tier"`
	Address string `yaml:"address,omitempty"`
	ID      uint16 `yaml:"id,omitempty"`
	State   string `yaml:"state,omitempty"`
}

// New makes a fleet of services with keys of its own.
func New(random *rand.Rand, services ...*Service) *Fleet {
	return &Fleet{
		Keys: Keys{
			Placement: RandomKey(random), Current: 1,
			Cookie: map[uint32]string{1: RandomKey(random)},
		},
		Services: services,
	}
}

// RandomKey makes a key of placement or of an epoch.
func RandomKey(random *rand.Rand) string {
	key := make([]byte, 16)
	for i := range key {
		key[i] = byte(random.Uint32())
	}
	return hex.EncodeToString(key)
}

// Encode is the file's content.
func (f *Fleet) Encode() ([]byte, error) {
	content, err := yaml.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encode fleet: %w", err)
	}
	return content, nil
}

// Add puts server i into a service. The id is i: never used again in one lab. Weight 0 is the default of Ballast, and for
// the scrubber, which serves nobody, it is 0.
func (s *Service) Add(name string, i int, address netip.Addr, weight uint16) {
	member := Member{Name: name, Address: address.String(), ID: uint16(i)}
	if scrubs := s.Table != nil && s.Table.Scrubber == name; weight != 0 || scrubs {
		member.Weight = &weight
	}
	s.Servers = append(s.Servers, member)
}

// Target is the address that clients connect to.
func (s *Service) Target() string { return net.JoinHostPort(s.VIP, fmt.Sprint(s.Ports[0])) }

// Drain ends new connections to server i.
func (s *Service) Drain(i int) {
	for at := range s.Servers {
		if s.Servers[at].ID == uint16(i) {
			s.Servers[at].State = "draining"
		}
	}
}

// Remove takes server i out of a service.
func (s *Service) Remove(i int) {
	s.Servers = slices.DeleteFunc(s.Servers, func(m Member) bool { return m.ID == uint16(i) })
}
