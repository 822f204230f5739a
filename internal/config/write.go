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
	Keys       *fileKeys       `yaml:"keys,omitempty"`
	Nodes      []fileNode      `yaml:"nodes,omitempty"`
	NodeHealth model.Health    `yaml:"node_health,omitzero"`
	Replicas   model.Replicas  `yaml:"replicas,omitzero"`
	Tunnels    []netip.Addr    `yaml:"tunnels_from,flow,omitempty"`
	Services   []model.Service `yaml:"services"`
}

type fileKeys struct {
	Placement string            `yaml:"placement,omitempty"`
	Current   uint32            `yaml:"current,omitempty"`
	Cookie    map[uint32]string `yaml:"cookie,omitempty"`
}

type fileNode struct {
	Name    string     `yaml:"name"`
	Tier    string     `yaml:"tier,omitempty"`
	Address string     `yaml:"address,omitempty"`
	ID      uint16     `yaml:"id,omitempty"`
	State   string     `yaml:"state,omitempty"`
	BGP     *model.BGP `yaml:"bgp,omitempty"`
}

// Marshal writes a fleet as a configuration file: every value explicit, keys in the order of the documentation, secrets
// included. Parse gives the same fleet back if it is valid and has its defaults applied. Services are written by the tags of the
// model: json, and yaml where a file is to look otherwise.
func Marshal(fleet model.Fleet) ([]byte, error) {
	file := fileFleet{NodeHealth: fleet.NodeHealth, Replicas: fleet.Replicas, Tunnels: fleet.TunnelsFrom, Services: append([]model.Service{}, fleet.Services...)}
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
	text, err := yaml.MarshalWithOptions(file, yaml.IndentSequence(true), yaml.CustomMarshaler(func(deadline time.Time) ([]byte, error) {
		return []byte(`"` + deadline.UTC().Format(time.RFC3339) + `"`), nil
	}))
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
	if n.Tier == model.TierSecond || !n.BGP.IsZero() {
		file.State = n.State.String()
	}
	if !n.BGP.IsZero() {
		file.BGP = &n.BGP
	}
	return file
}
