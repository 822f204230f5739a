package config

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/yamltree"
)

type fileFleet struct {
	Keys       *fileKeys      `json:"keys,omitempty"`
	Nodes      []fileNode     `json:"nodes,omitempty"`
	NodeHealth model.Health   `json:"node_health,omitzero"`
	Replicas   model.Replicas `json:"replicas,omitzero"`
	Tunnels    []netip.Addr   `json:"tunnels_from,omitempty"`
	Unserved   model.Unserved `json:"unserved,omitempty"`
	Services   []fileService  `json:"services"`
}

// fileService writes what the model has in two fields as the one that it is in files.
type fileService struct {
	Name         string       `json:"name"`
	VIP          netip.Addr   `json:"vip,omitzero"`
	VIPs         []netip.Addr `json:"vips,omitempty"`
	Destinations model.Prefix `json:"destinations,omitzero"`
	Protocol     string       `json:"protocol"`
	Ports        any          `json:"ports,omitempty"`
	MoreVIPs     *struct{}    `json:"more_vips,omitempty"`
	PortRanges   *struct{}    `json:"port_ranges,omitempty"`
	*model.Service
	Source  *struct{} `json:"source,omitempty"`
	Servers any       `json:"servers"` // a list, or who names them
}

func writeService(s *model.Service) fileService {
	file := fileService{Name: s.Name, VIP: s.VIP, Destinations: s.Destinations, Protocol: s.Protocol.String(), Service: s, Servers: s.Servers}
	switch {
	case !s.Source.IsZero():
		file.Servers = s.Source
	case s.Servers == nil:
		file.Servers = []model.Server{}
	}
	if len(s.MoreVIPs) > 0 {
		file.VIP, file.VIPs = netip.Addr{}, s.VIPs()
	}
	var ports []any
	for _, port := range s.Ports {
		ports = append(ports, port)
	}
	for _, r := range s.PortRanges {
		ports = append(ports, r.String())
	}
	if len(s.PortRanges) > 0 && s.PortRanges[0] == model.AllPorts {
		file.Ports = model.AllPorts.String()
	} else if len(ports) > 0 {
		file.Ports = ports
	}
	return file
}

type fileKeys struct {
	Placement string            `json:"placement,omitempty"`
	Current   uint32            `json:"current,omitempty"`
	Cookie    map[uint32]string `json:"cookie,omitempty"`
}

type fileNode struct {
	Name    string     `json:"name"`
	Tier    string     `json:"tier,omitempty"`
	Address string     `json:"address,omitempty"`
	ID      uint16     `json:"id,omitempty"`
	State   string     `json:"state,omitempty"`
	BGP     *model.BGP `json:"bgp,omitempty"`
	L2      *model.L2  `json:"l2,omitempty"`
}

// Marshal writes a fleet as a configuration file: every value that is not zero, keys in the order of the documentation, secrets
// included. Parse gives the same fleet back if it is valid and has its defaults applied. Services are written by the
// model's tags for JSON, and those without servers have an empty list: Parse takes no null for one.
func Marshal(fleet model.Fleet) ([]byte, error) {
	file := fileFleet{NodeHealth: fleet.NodeHealth, Replicas: fleet.Replicas, Tunnels: fleet.TunnelsFrom, Unserved: fleet.Unserved,
		Services: []fileService{}}
	for i := range fleet.Services {
		file.Services = append(file.Services, writeService(&fleet.Services[i]))
	}
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
	text, err := json.Marshal(file)
	if err == nil {
		text, err = yamltree.FromJSON(text)
	}
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return text, nil
}

// writeNode leaves out what nodes of the first tier, or without one, do not have.
func writeNode(n *model.Node) fileNode {
	file := fileNode{Name: n.Name}
	if n.Tier != 0 {
		file.Tier = n.Tier.String()
	}
	if n.Tier == model.TierSecond {
		file.Address, file.ID = n.Address.String(), n.ID
	}
	if n.Tier == model.TierSecond || n.Announces() {
		file.State = n.State.String()
	}
	if !n.BGP.IsZero() {
		file.BGP = &n.BGP
	}
	if !n.L2.IsZero() {
		file.L2 = &n.L2
	}
	return file
}
