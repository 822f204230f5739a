package config

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/schema"
	"github.com/ballast-lb/ballast/internal/yamltree"
)

func (r *reader) fleet(text []byte, fleet *model.Fleet) {
	r.Read(text, func(root *yaml.Node) {
		*fleet = model.Fleet{}
		r.root(root, fleet)
	})
}

func (r *reader) root(root *yaml.Node, fleet *model.Fleet) {
	keys := values(r, schema.Fleet, fleet)
	keys["keys"] = func(node *yaml.Node, path string) { r.keys(node, path, &fleet.Keys) }
	keys["node_health"] = func(node *yaml.Node, path string) { r.Mapping(node, path, values(r, schema.Health, &fleet.NodeHealth)) }
	keys["nodes"] = list(r, &fleet.Nodes, func() model.Node { return model.Node{} }, func(n *model.Node) map[string]yamltree.Value {
		return values(r, schema.Node, n)
	})
	keys["services"] = list(r, &fleet.Services, model.NewService, func(s *model.Service) map[string]yamltree.Value {
		keys := values(r, schema.Service, s)
		delete(keys, schema.SourceSection)
		keys["servers"] = r.servers(s)
		return keys
	})
	r.Mapping(root, "", keys)
	if r.Has("tunnels_from") && len(fleet.TunnelsFrom) == 0 {
		r.FailAt("tunnels_from", "name the load balancers, or remove the key: then tunnels from any address are accepted", "empty")
	}
	if !r.Has("services") {
		// A file that an editor has only half written must not remove every service.
		r.Fail(1, "services", "write `services: []` to remove every service", "missing")
	}
}

// servers reads a list of servers, or who names them.
func (r *reader) servers(s *model.Service) yamltree.Value {
	listed := list(r, &s.Servers, model.NewServer, func(s *model.Server) map[string]yamltree.Value {
		return values(r, schema.Server, s)
	})
	source := values(r, schema.Source, &s.Source)
	return func(node *yaml.Node, path string) {
		if node.Kind != yaml.MappingNode {
			listed(node, path)
			return
		}
		if r.Mapping(node, path, source); s.Source.From == model.SourceList {
			r.Fail(node.Line, path+".from", "say who names them, like dns, or write a list", "missing")
		}
	}
}

// ParseServers reads a list of servers as it is in a configuration, without giving it defaults; name is used in errors only. Ids, deadlines and state off are
// refused: controllers and operators give these. wrong are errors as of Parse, in the order of lines.
func ParseServers(name string, text []byte) (servers []model.Server, wrong []error) {
	r := &reader{file: name, Reader: yamltree.New(yamltree.Rules{Bytes: MaxBytes, TooLarge: "name fewer servers", Empty: "write a list of servers"})}
	r.Read(text, func(root *yaml.Node) {
		servers = nil
		list(r, &servers, model.NewServer, func(s *model.Server) map[string]yamltree.Value { return values(r, schema.Server, s) })(root, "")
	})
	for i := range servers {
		switch s, path := &servers[i], fmt.Sprintf("[%d]", i); {
		case s.ID != 0:
			r.FailAt(path+".id", "remove it: controllers give ids", "%d is given", s.ID)
		case !s.Deadline.IsZero() || s.State == model.StateOff:
			r.FailAt(path, "use state: draining, or remove the server", "a source switches no server off")
		}
	}
	return servers, r.errors()
}

// list reads a list of mappings. keys returns the fields of an element; it is called once, and every element is read into the same variable.
func list[T any](r *reader, target *[]T, fresh func() T, keys func(*T) map[string]yamltree.Value) yamltree.Value {
	return func(node *yaml.Node, path string) {
		var element T
		fields := keys(&element)
		r.Sequence(node, path, func(node *yaml.Node, path string) {
			element = fresh()
			r.Mapping(node, path, fields)
			*target = append(*target, element)
		})
	}
}

// values reads fields of a T into target.
func values[T any](r *reader, fields []schema.Field[T], target *T) map[string]yamltree.Value {
	keys, sections := make(map[string]yamltree.Value, len(fields)), make(map[string][]schema.Field[T])
	for _, f := range fields {
		if section, key, nested := strings.Cut(f.Key, "."); nested {
			f.Key = key
			sections[section] = append(sections[section], f)
			continue
		}
		keys[f.Key] = r.Value(func(text string) error { return f.Set(target, text) })
		if element := keys[f.Key]; f.List != "" {
			keys[f.Key] = func(node *yaml.Node, path string) {
				if node.Kind == yaml.ScalarNode && node.Value == f.Alone && f.Alone != "" {
					element(node, path)
					return
				}
				if r.Sequence(node, path, element); f.Clear && node.Kind == yaml.SequenceNode && len(node.Content) == 0 {
					r.Fail(node.Line, path, "name some, or remove the key: then it is as if all were listed", "empty")
				}
			}
		}
	}
	for section, fields := range sections {
		keys[section] = func(node *yaml.Node, path string) { r.Mapping(node, path, values(r, fields, target)) }
	}
	return keys
}

func (r *reader) keys(node *yaml.Node, path string, keys *model.Keys) {
	r.Mapping(node, path, map[string]yamltree.Value{
		"placement": r.key(func(key [16]byte) { keys.Placement = key }),
		"current": r.Value(func(text string) (err error) {
			keys.Current, err = model.ParseNumber[uint32](text, 0, math.MaxUint32)
			return err
		}),
		"cookie": func(node *yaml.Node, path string) {
			keys.Cookie = make(map[uint32][16]byte)
			r.Entries(node, path, func(text string, line int, child *yaml.Node, childPath string) {
				epoch, err := strconv.ParseUint(text, 10, 32)
				if err != nil || strconv.FormatUint(epoch, 10) != text {
					r.Fail(line, childPath, "use a number from 1", "%q is not an epoch", text)
					return
				}
				r.key(func(key [16]byte) { keys.Cookie[uint32(epoch)] = key })(child, childPath)
			})
		},
	})
}

// key reads 16 bytes of hexadecimal. A secret is never repeated in a message.
func (r *reader) key(store func([16]byte)) yamltree.Value {
	return r.Value(func(text string) error {
		raw, err := hex.DecodeString(text)
		if err != nil || len(raw) != 16 {
			return &model.Invalid{Problem: "not a key of 32 hexadecimal digits", Remedy: "create one with `ballast ctl key generate`"}
		}
		store([16]byte(raw))
		return nil
	})
}
