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
	if root := d.reader.Parse(text); root != nil {
		d.reader.fleet(root, &d.Fleet)
	}
	if d.reader.Failed() > 0 {
		return nil, d.reader.joined()
	}
	d.HasKeys = d.reader.Has("keys")
	return d, nil
}

// Line returns the line of a path like services[0].servers[2].id, or of the nearest thing around it.
func (d *Draft) Line(path string) int { return d.reader.LineOf(path) }
