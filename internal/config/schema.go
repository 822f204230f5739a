package config

import (
	"encoding"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/yamltree"
)

func (r *reader) fleet(root ast.Node, fleet *model.Fleet) {
	r.Mapping(root, "", map[string]yamltree.Value{
		"keys":        func(node ast.Node, path string) { r.keys(node, path, &fleet.Keys) },
		"node_health": func(node ast.Node, path string) { r.health(node, path, &fleet.NodeHealth) },
		"nodes": func(node ast.Node, path string) {
			r.Sequence(node, path, func(node ast.Node, path string) {
				fleet.Nodes = append(fleet.Nodes, r.node(node, path))
			})
		},
		"tunnels_from": func(node ast.Node, path string) {
			r.Sequence(node, path, func(node ast.Node, path string) {
				var address netip.Addr
				r.address(&address)(node, path)
				fleet.TunnelsFrom = append(fleet.TunnelsFrom, address)
			})
			if len(fleet.TunnelsFrom) == 0 {
				r.Fail(yamltree.Line(node), path, "name the load balancers, or remove the key: then tunnels of anybody are taken", "empty")
			}
		},
		"services": func(node ast.Node, path string) {
			r.Sequence(node, path, func(node ast.Node, path string) {
				service := model.NewService()
				r.service(node, path, &service)
				fleet.Services = append(fleet.Services, service)
			})
		},
	})
	if !r.Has("services") {
		// A file that an editor has only half written must not remove every service.
		r.Fail(1, "services", "write `services: []` to remove every service", "missing")
	}
}

func (r *reader) node(node ast.Node, path string) (n model.Node) {
	r.Mapping(node, path, map[string]yamltree.Value{
		"name":    r.text(&n.Name),
		"tier":    r.choice(&n.Tier),
		"address": r.address(&n.Address),
		"id":      number(r, &n.ID, 1, 1<<model.MaxNodeBits-1),
		"state":   r.choice(&n.State),
	})
	return n
}

func (r *reader) keys(node ast.Node, path string, keys *model.Keys) {
	r.Mapping(node, path, map[string]yamltree.Value{
		"placement": r.key(func(key [16]byte) { keys.Placement = key }),
		"current":   number(r, &keys.Current, 0, math.MaxUint32),
		"cookie": func(node ast.Node, path string) {
			keys.Cookie = make(map[uint32][16]byte)
			r.Entries(node, path, func(text string, line int, child ast.Node, childPath string) {
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

func (r *reader) service(node ast.Node, path string, service *model.Service) {
	r.Mapping(node, path, map[string]yamltree.Value{
		"name":     r.text(&service.Name),
		"vip":      r.address(&service.VIP),
		"protocol": r.choice(&service.Protocol),
		"ports": func(node ast.Node, path string) {
			r.Sequence(node, path, func(node ast.Node, path string) {
				var port uint16
				number(r, &port, 1, math.MaxUint16)(node, path)
				service.Ports = append(service.Ports, port)
			})
		},
		"dispatch":    r.choice(&service.Dispatch),
		"affinity":    r.choice(&service.Affinity),
		"fallback":    r.choice(&service.Fallback),
		"cookie_bits": number(r, &service.CookieBits, model.MinCookieBits, model.MaxCookieBits),
		"forward":     r.choice(&service.Forward),
		"return":      r.choice(&service.Return),
		"table_slots": number(r, &service.TableSlots, 1, math.MaxUint32),
		"table":       func(node ast.Node, path string) { r.table(node, path, &service.Table) },
		"load":        func(node ast.Node, path string) { r.load(node, path, &service.Load) },
		"health":      func(node ast.Node, path string) { r.health(node, path, &service.Health) },
		"servers": func(node ast.Node, path string) {
			r.Sequence(node, path, func(node ast.Node, path string) {
				server := model.NewServer()
				r.server(node, path, &server)
				service.Servers = append(service.Servers, server)
			})
		},
	})
}

func (r *reader) server(node ast.Node, path string, server *model.Server) {
	r.Mapping(node, path, map[string]yamltree.Value{
		"name":    r.text(&server.Name),
		"address": r.address(&server.Address),
		"port":    number(r, &server.Port, 1, math.MaxUint16),
		"id":      number(r, &server.ID, 1, 1<<(model.MaxCookieBits-1)-1),
		"weight":  number(r, &server.Weight, 0, model.MaxWeight),
		"state":   r.choice(&server.State),
		"deadline": func(node ast.Node, path string) {
			text, ok := r.Scalar(node, path)
			if !ok {
				return
			}
			deadline, err := time.Parse(time.RFC3339, text)
			if err != nil {
				r.Fail(yamltree.Line(node), path, "write it like 2026-01-31T23:00:00Z", "%q is not a time", text)
				return
			}
			server.Deadline = deadline.UTC()
		},
	})
}

func (r *reader) table(node ast.Node, path string, table *model.Table) {
	r.Mapping(node, path, map[string]yamltree.Value{
		"entries":      number(r, &table.Entries, model.MinEntries, model.MaxEntries),
		"index_bits":   number(r, &table.IndexBits, 1, model.MaxIndexBits),
		"node_bits":    number(r, &table.NodeBits, 0, model.MaxNodeBits),
		"idle_timeout": r.span(&table.IdleTimeout, model.MinIdleTimeout, model.MaxIdleTimeout),
		"packet_limit": number(r, &table.PacketLimit, 0, model.MaxPacketLimit),
		"scrubber":     r.text(&table.Scrubber),
	})
}

func (r *reader) load(node ast.Node, path string, load *model.Load) {
	r.Mapping(node, path, map[string]yamltree.Value{
		"source":      r.choice(&load.Source),
		"interval":    r.span(&load.Interval, model.MinLoadInterval, model.MaxLoadInterval),
		"classes":     number(r, &load.Classes, 0, model.MaxClasses),
		"queue_limit": number(r, &load.QueueLimit, 1, math.MaxUint32),
		"endpoint":    r.text(&load.Endpoint),
	})
}

func (r *reader) health(node ast.Node, path string, health *model.Health) {
	r.Mapping(node, path, map[string]yamltree.Value{
		"check":    r.choice(&health.Check),
		"interval": r.span(&health.Interval, model.MinCheckTime, model.MaxCheckTime),
		"timeout":  r.span(&health.Timeout, model.MinCheckTime, model.MaxCheckTime),
		"rise":     number(r, &health.Rise, 1, math.MaxUint8),
		"fall":     number(r, &health.Fall, 1, math.MaxUint8),
		"port":     number(r, &health.Port, 1, math.MaxUint16),
		"path":     r.text(&health.Path),
		"host":     r.text(&health.Host),
		"service":  r.text(&health.Service),
		"command": func(node ast.Node, path string) {
			r.Sequence(node, path, func(node ast.Node, path string) {
				if text, ok := r.Scalar(node, path); ok {
					health.Command = append(health.Command, text)
				}
			})
		},
		"all_down": r.choice(&health.AllDown),
		"deadline": r.choice(&health.Deadline),
	})
}

// span reads a duration that is within a range: 0, which the model takes for "not given", never is.
func (r *reader) span(target *model.Duration, least, most model.Duration) yamltree.Value {
	return func(node ast.Node, path string) {
		before := r.Failed()
		if r.choice(target)(node, path); r.Failed() == before && (*target < least || *target > most) {
			r.Fail(yamltree.Line(node), path, fmt.Sprintf("use %s to %s", least, most), "%s is out of range", *target)
		}
	}
}

func (r *reader) text(target *string) yamltree.Value {
	return func(node ast.Node, path string) {
		if text, ok := r.Scalar(node, path); ok {
			if *target = text; text == "" {
				r.Fail(yamltree.Line(node), path, "give a name or remove the key", "empty")
			}
		}
	}
}

func (r *reader) address(target *netip.Addr) yamltree.Value {
	return func(node ast.Node, path string) {
		text, ok := r.Scalar(node, path)
		if !ok {
			return
		}
		address, err := netip.ParseAddr(text)
		if err != nil {
			r.Fail(yamltree.Line(node), path, "write it like 198.51.100.10 or 2001:db8::10", "%q is not an IP address", text)
			return
		}
		*target = address
	}
}

func (r *reader) choice(target encoding.TextUnmarshaler) yamltree.Value {
	return func(node ast.Node, path string) {
		text, ok := r.Scalar(node, path)
		if !ok {
			return
		}
		var invalid *model.Invalid
		if err := target.UnmarshalText([]byte(text)); errors.As(err, &invalid) {
			r.Fail(yamltree.Line(node), path, invalid.Remedy, "%s", invalid.Problem)
		}
	}
}

// key reads 16 bytes of hexadecimal. A secret is never repeated in a message.
func (r *reader) key(store func([16]byte)) yamltree.Value {
	return func(node ast.Node, path string) {
		text, ok := r.Scalar(node, path)
		if !ok {
			return
		}
		raw, err := hex.DecodeString(text)
		if err != nil || len(raw) != 16 {
			r.Fail(yamltree.Line(node), path, "create one with `ballast ctl key generate`", "not a key of 32 hexadecimal digits")
			return
		}
		store([16]byte(raw))
	}
}

// number reads a decimal number within a range. Where the model takes 0 for "not given", 0 is out of it.
func number[N uint8 | uint16 | uint32](r *reader, target *N, least, most N) yamltree.Value {
	return yamltree.Whole(r.Reader, target, least, most)
}
