package peer

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/yamltree"
)

// maxBytes is what is read at most of a file.
const maxBytes = 1 << 20

// File describes a peer: what is loaded, what is put into its maps, and what it must do with packets. Keys and values of maps are bytes in hexadecimal.
type File struct {
	Title        string // of its row
	Object       string // compiled ELF object; relative to the file
	Program      string // function or section
	Constants    map[string][]byte
	Entries      map[string]uint32 // of maps that are otherwise larger than this machine's memory
	Maps         []Fill
	Inner        []Fill // maps of maps, whose values are made
	TailCalls    []TailCall
	VIP          netip.Addr
	Protocol     model.Protocol // TCP or UDP
	SYN          bool           // packets are SYNs
	Growth       int16          // of each packet, in bytes
	Destinations []netip.Addr   // of outer headers
	Counter      *Counter       // nil: nothing counts what the program handles
}

// Fill is an entry of a map.
type Fill struct {
	Map   string
	Key   []byte
	Value []byte // of maps per CPU: of each
}

// TailCall is an entry of a map of programs.
type TailCall struct {
	Map     string
	Key     []byte
	Program string
}

// Counter is where 8 bytes count packets; those of all CPUs are added up.
type Counter struct {
	Map    string
	Key    []byte
	Offset uint16
}

// Load reads a file. The error names each line that is wrong.
func Load(path string) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a peer: %w", err)
	}
	return parse(path, text)
}

type reader struct{ *yamltree.Reader }

func parse(path string, text []byte) (*File, error) {
	r := reader{yamltree.New(yamltree.Rules{Bytes: maxBytes, TooLarge: "describe fewer entries", Empty: "see ballast-lab bench datapath --help"})}
	f := &File{Constants: map[string][]byte{}, Entries: map[string]uint32{}, Protocol: model.ProtocolTCP}
	if root := r.Parse(text); root != nil {
		r.Mapping(root, "", r.fields(f))
	}
	if r.Failed() == 0 {
		r.complete(f)
	}
	var errs []error
	for _, o := range r.Objections() {
		errs = append(errs, fmt.Errorf("%s:%d: %s: %s: %s", path, o.Line, o.Path, o.Problem, o.Remedy))
	}
	return f, errors.Join(errs...)
}

func (r reader) fields(f *File) map[string]yamltree.Value {
	return map[string]yamltree.Value{
		"name": r.text(&f.Title), "object": r.text(&f.Object), "program": r.text(&f.Program),
		"constants": r.named(func(name string) yamltree.Value {
			return r.Value(func(text string) (err error) { f.Constants[name], err = bytesOf(text); return err })
		}),
		"entries": r.named(func(name string) yamltree.Value {
			return r.Value(func(text string) (err error) {
				f.Entries[name], err = model.ParseNumber[uint32](text, 1, math.MaxUint32)
				return err
			})
		}),
		"maps": r.each(func() map[string]yamltree.Value {
			f.Maps = append(f.Maps, Fill{})
			fill := &f.Maps[len(f.Maps)-1]
			return map[string]yamltree.Value{"map": r.text(&fill.Map), "key": r.bytes(&fill.Key), "value": r.bytes(&fill.Value)}
		}),
		"inner_maps": r.each(func() map[string]yamltree.Value {
			f.Inner = append(f.Inner, Fill{})
			fill := &f.Inner[len(f.Inner)-1]
			return map[string]yamltree.Value{"map": r.text(&fill.Map), "key": r.bytes(&fill.Key)}
		}),
		"tail_calls": r.each(func() map[string]yamltree.Value {
			f.TailCalls = append(f.TailCalls, TailCall{})
			call := &f.TailCalls[len(f.TailCalls)-1]
			return map[string]yamltree.Value{"map": r.text(&call.Map), "key": r.bytes(&call.Key), "program": r.text(&call.Program)}
		}),
		"vip": r.Value(func(text string) (err error) { f.VIP, err = model.ParseAddress(text); return err }),
		"packets": r.Value(func(text string) error {
			kinds := map[string]bool{"tcp": false, "tcp-syn": true, "udp": false}
			syn, ok := kinds[text]
			if f.SYN = syn; text == "udp" {
				f.Protocol = model.ProtocolUDP
			}
			if !ok {
				return &model.Invalid{Problem: fmt.Sprintf("unknown value %q", text), Remedy: "use one of " + known(kinds)}
			}
			return nil
		}),
		"growth": r.Value(func(text string) error {
			growth, err := model.ParseNumber[uint16](text, 0, 100)
			f.Growth = int16(growth)
			return err
		}),
		"destinations": func(node *yaml.Node, path string) {
			r.Sequence(node, path, r.Value(func(text string) error {
				address, err := model.ParseAddress(text)
				f.Destinations = append(f.Destinations, address)
				return err
			}))
		},
		"counter": func(node *yaml.Node, path string) {
			f.Counter = &Counter{}
			r.Mapping(node, path, map[string]yamltree.Value{"map": r.text(&f.Counter.Map), "key": r.bytes(&f.Counter.Key),
				"offset": r.Value(func(text string) (err error) {
					f.Counter.Offset, err = model.ParseNumber[uint16](text, 0, math.MaxUint16-8)
					return err
				})})
		},
	}
}

// complete objects to what is missing.
func (r reader) complete(f *File) {
	for _, key := range []string{"name", "object", "program", "vip"} {
		if !r.Has(key) {
			r.Fail(1, key, "add it", "missing")
		}
	}
	if f.Protocol == model.ProtocolUDP && f.VIP.Is6() {
		r.FailAt("packets", "use an IPv4 address with udp, or tcp", "there are no datagrams over IPv6 here")
	}
	if f.Growth > 0 && len(f.Destinations) == 0 {
		r.Fail(1, "destinations", "list the servers that outer headers may lead to", "missing")
	}
}

func (r reader) text(target *string) yamltree.Value {
	return r.Value(func(text string) error {
		if *target = text; text == "" {
			return &model.Invalid{Problem: "empty", Remedy: "write a name"}
		}
		return nil
	})
}

func (r reader) bytes(target *[]byte) yamltree.Value {
	return r.Value(func(text string) (err error) { *target, err = bytesOf(text); return err })
}

func bytesOf(text string) ([]byte, error) {
	raw, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil || len(raw) == 0 {
		return nil, &model.Invalid{Problem: strconv.Quote(text) + " is not bytes in hexadecimal", Remedy: `write them like "0a01 0001", in the order of memory`}
	}
	return raw, nil
}

// named reads a mapping whose keys the object has.
func (r reader) named(read func(name string) yamltree.Value) yamltree.Value {
	return func(node *yaml.Node, path string) {
		r.Entries(node, path, func(name string, _ int, child *yaml.Node, childPath string) { read(name)(child, childPath) })
	}
}

// each reads a list of mappings.
func (r reader) each(fields func() map[string]yamltree.Value) yamltree.Value {
	return func(node *yaml.Node, path string) {
		r.Sequence(node, path, func(node *yaml.Node, path string) { r.Mapping(node, path, fields()) })
	}
}

func known[V any](all map[string]V) string { return strings.Join(slices.Sorted(maps.Keys(all)), ", ") }
