package config

import (
	"github.com/ballast-lb/ballast/internal/model"
)

// Draft is a configuration that was read, but neither given its defaults nor checked for contradictions: whoever it is for does
// both, and gives ids to servers that have none.
type Draft struct {
	Fleet   model.Fleet
	HasKeys bool // it has a keys: section
	reader  *reader
}

// ParseDraft reads a configuration; name is used in errors only. Its errors are those of Parse that can be found in the text alone.
func ParseDraft(name string, text []byte) (*Draft, error) {
	d := &Draft{reader: newReader(name)}
	d.reader.fleet(text, &d.Fleet)
	if d.reader.Failed() > 0 {
		return nil, d.reader.joined()
	}
	d.HasKeys = d.reader.Has("keys")
	return d, nil
}

// Validate objects to what whoever applies the draft would refuse, but for what depends on the fleet that there is. Ids that are missing are given,
// and keys are made up: who lacks them keeps those there are.
func (d *Draft) Validate() error {
	fleet := d.Fleet.Clone()
	if !d.HasKeys {
		fleet.Keys = model.Keys{Placement: [16]byte{1}, Current: 1, Cookie: map[uint32][16]byte{1: {1}}}
	}
	fleet.MakeRoomForNodes()
	for i := range fleet.Services {
		s := &fleet.Services[i]
		s.ApplyDefaults()
		next := s.FreeIDs()
		for j := range s.Servers {
			if s.Servers[j].ID == 0 {
				s.Servers[j].ID, _ = next()
			}
		}
	}
	for i := range fleet.Nodes {
		if n := &fleet.Nodes[i]; n.Tier == model.TierSecond && n.ID == 0 {
			n.ID, _ = fleet.NextFreeNodeID()
		}
	}
	fleet.ApplyDefaults()
	d.reader.addInvalid(fleet.Validate())
	return d.reader.joined()
}

// Line returns the line of a path like services[0].servers[2].id, or of the nearest thing around it.
func (d *Draft) Line(path string) int { return d.reader.LineOf(path) }
