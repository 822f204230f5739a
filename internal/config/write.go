package config

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/ballast-lb/ballast/internal/model"
)

type fileFleet struct {
	Keys       *fileKeys     `yaml:"keys,omitempty"`
	Nodes      []fileNode    `yaml:"nodes,omitempty"`
	NodeHealth *fileHealth   `yaml:"node_health,omitempty"`
	Tunnels    []netip.Addr  `yaml:"tunnels_from,flow,omitempty"`
	Services   []fileService `yaml:"services"`
}

type fileKeys struct {
	Placement string            `yaml:"placement,omitempty"`
	Current   uint32            `yaml:"current,omitempty"`
	Cookie    map[uint32]string `yaml:"cookie,omitempty"`
}

type fileNode struct {
	Name    string `yaml:"name"`
	Tier    string `yaml:"tier"`
	Address string `yaml:"address,omitempty"`
	ID      uint16 `yaml:"id,omitempty"`
	State   string `yaml:"state,omitempty"`
}

type fileService struct {
	Name       string       `yaml:"name"`
	VIP        netip.Addr   `yaml:"vip"`
	Protocol   string       `yaml:"protocol"`
	Ports      []uint16     `yaml:"ports,flow"`
	Dispatch   string       `yaml:"dispatch"`
	Affinity   string       `yaml:"affinity"`
	Fallback   string       `yaml:"fallback"`
	CookieBits uint8        `yaml:"cookie_bits"`
	Forward    string       `yaml:"forward"`
	Return     string       `yaml:"return"`
	TableSlots uint32       `yaml:"table_slots"`
	Table      *fileTable   `yaml:"table,omitempty"`
	Load       fileLoad     `yaml:"load"`
	Health     fileHealth   `yaml:"health"`
	Servers    []fileServer `yaml:"servers"`
}

type fileServer struct {
	Name    string     `yaml:"name"`
	Address netip.Addr `yaml:"address"`
	Port    uint16     `yaml:"port,omitempty"`
	ID      uint16     `yaml:"id"`
	Weight  uint16     `yaml:"weight"`
	State   string     `yaml:"state"`
	// RFC 3339, in UTC
	Deadline string `yaml:"deadline,omitempty"`
}

type fileTable struct {
	Entries     uint32 `yaml:"entries"`
	IndexBits   uint8  `yaml:"index_bits"`
	NodeBits    uint8  `yaml:"node_bits"`
	IdleTimeout string `yaml:"idle_timeout"`
	PacketLimit uint32 `yaml:"packet_limit"`
	Scrubber    string `yaml:"scrubber,omitempty"`
}

type fileLoad struct {
	Source     string `yaml:"source"`
	Interval   string `yaml:"interval"`
	Classes    uint8  `yaml:"classes"`
	QueueLimit uint32 `yaml:"queue_limit"`
	Endpoint   string `yaml:"endpoint,omitempty"`
}

type fileHealth struct {
	Check    string   `yaml:"check"`
	Interval string   `yaml:"interval"`
	Timeout  string   `yaml:"timeout"`
	Rise     uint8    `yaml:"rise"`
	Fall     uint8    `yaml:"fall"`
	Port     uint16   `yaml:"port,omitempty"`
	Path     string   `yaml:"path,omitempty"`
	Host     string   `yaml:"host,omitempty"`
	Service  string   `yaml:"service,omitempty"`
	Command  []string `yaml:"command,flow,omitempty"`
	AllDown  string   `yaml:"all_down"`
	Deadline string   `yaml:"deadline"`
}

// Marshal writes a fleet as a configuration file: every value explicit, keys in the order of the documentation, secrets
// included. Parse gives the same fleet back if it is valid and has its defaults applied.
func Marshal(fleet model.Fleet) ([]byte, error) {
	file := fileFleet{Tunnels: fleet.TunnelsFrom, Services: make([]fileService, 0, len(fleet.Services))}
	if keys := fleet.Keys; keys.Placement != [16]byte{} || len(keys.Cookie) > 0 {
		file.Keys = &fileKeys{Current: keys.Current, Cookie: make(map[uint32]string, len(keys.Cookie))}
		if keys.Placement != [16]byte{} {
			file.Keys.Placement = hex.EncodeToString(keys.Placement[:])
		}
		for epoch, key := range keys.Cookie {
			file.Keys.Cookie[epoch] = hex.EncodeToString(key[:])
		}
	}
	for i := range fleet.Nodes {
		file.Nodes = append(file.Nodes, writeNode(&fleet.Nodes[i]))
	}
	if !fleet.NodeHealth.IsZero() {
		health := writeHealth(&fleet.NodeHealth)
		file.NodeHealth = &health
	}
	for i := range fleet.Services {
		file.Services = append(file.Services, writeService(&fleet.Services[i]))
	}
	text, err := yaml.MarshalWithOptions(file, yaml.IndentSequence(true))
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return text, nil
}

// writeNode leaves out what nodes of the first tier do not have.
func writeNode(n *model.Node) fileNode {
	if n.Tier != model.TierSecond {
		return fileNode{Name: n.Name, Tier: n.Tier.String()}
	}
	return fileNode{n.Name, n.Tier.String(), n.Address.String(), n.ID, n.State.String()}
}

func writeHealth(h *model.Health) fileHealth {
	return fileHealth{h.Check.String(), h.Interval.String(), h.Timeout.String(), h.Rise, h.Fall, h.Port, h.Path, h.Host,
		h.Service, h.Command, h.AllDown.String(), h.Deadline.String()}
}

func writeService(s *model.Service) fileService {
	service := fileService{Name: s.Name, VIP: s.VIP, Protocol: s.Protocol.String(), Ports: s.Ports, Dispatch: s.Dispatch.String(),
		Affinity: s.Affinity.String(), Fallback: s.Fallback.String(), CookieBits: s.CookieBits, Forward: s.Forward.String(),
		Return: s.Return.String(), TableSlots: s.TableSlots, Servers: make([]fileServer, 0, len(s.Servers))}
	service.Load = fileLoad{s.Load.Source.String(), s.Load.Interval.String(), s.Load.Classes, s.Load.QueueLimit, s.Load.Endpoint}
	service.Health = writeHealth(&s.Health)
	if t := &s.Table; s.Affinity == model.AffinityTable {
		service.Table = &fileTable{t.Entries, t.IndexBits, t.NodeBits, t.IdleTimeout.String(), t.PacketLimit, t.Scrubber}
	}
	for _, server := range s.Servers {
		deadline := ""
		if !server.Deadline.IsZero() {
			deadline = server.Deadline.UTC().Format(time.RFC3339)
		}
		service.Servers = append(service.Servers, fileServer{Name: server.Name, Address: server.Address, Port: server.Port,
			ID: server.ID, Weight: server.Weight, State: server.State.String(), Deadline: deadline})
	}
	return service
}
