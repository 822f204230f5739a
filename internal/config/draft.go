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
	d := &Draft{reader: &reader{file: name, lines: map[string]int{"": 1}}}
	if root := d.reader.parse(text); root != nil {
		d.reader.fleet(root, &d.Fleet)
	}
	if len(d.reader.errors) > 0 {
		return nil, d.reader.joined()
	}
	_, d.HasKeys = d.reader.lines["keys"]
	return d, nil
}

// Line returns the line of a path like services[0].servers[2].id, or of the nearest thing around it.
func (d *Draft) Line(path string) int { return d.reader.lineOf(path) }
