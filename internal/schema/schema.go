// Package schema describes every field of a service, a server, a node and a health check once: the configuration file, what changes in a
// fleet, the flags of ctl and the tables of docs/run/configure.md follow from it.
//
// A new field is a field of the model with its default, a row here, and a line each in the API's message and its conversion.
package schema

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Field is one value of a T. Its texts are those of the documents: `code` is between backticks.
type Field[T any] struct {
	Key     string // in the configuration file, and in the API's message: "table.entries" is entries in the section table
	Doc     string // what it is, in a line
	Default string // empty: there is none
	More    string // what only the documents say
	Values  string // where Value.Values does not say it well enough
	Clear   bool   // an empty flag takes it away
	Alone   string // of a list: what may stand in its place
	Also    string // in the API's message: the field that holds the rest of it
	Value[T]
}

// Value is how a field is read, shown and copied.
type Value[T any] struct {
	Unit   string                             // of what is written: "bits", "address"
	Values string                             // that can be written; empty: the unit says it
	List   string                             // what is between the elements of a list where it is one text; empty: it is no list
	Set    func(target *T, text string) error // a list gets one more element; the error is *model.Invalid
	Text   func(*T) string                    // equal texts mean equal values
	Copy   func(to, from *T)
}

// Allowed says what can be written.
func (f *Field[T]) Allowed() string {
	if f.Values != "" {
		return f.Values
	}
	return f.Value.Values
}

// Section returns fields of a part of a T, in the section of that name.
func Section[T, P any](name string, fields []Field[P], part func(*T) *P) (of []Field[T]) {
	for _, f := range fields {
		of = append(of, Field[T]{name + "." + f.Key, f.Doc, f.Default, f.More, f.Values, f.Clear, f.Alone, f.Also, Value[T]{f.Unit, f.Value.Values, f.List,
			func(target *T, text string) error { return f.Set(part(target), text) },
			func(t *T) string { return f.Text(part(t)) },
			func(to, from *T) { f.Copy(part(to), part(from)) },
		}})
	}
	return of
}

// scalar is a value that parse reads; show makes texts of it.
func scalar[T, V any](at func(*T) *V, unit, values string, parse func(text string) (V, error), show func(V) string) Value[T] {
	return Value[T]{Unit: unit, Values: values,
		Set:  func(target *T, text string) (err error) { *at(target), err = parse(text); return err },
		Text: func(t *T) string { return show(*at(t)) },
		Copy: func(to, from *T) { *at(to) = *at(from) },
	}
}

// list is a list of such values.
func list[T, V any](at func(*T) *[]V, unit, values, separator, format string, parse func(text string) (V, error)) Value[T] {
	return Value[T]{Unit: unit, Values: values, List: separator,
		Set: func(target *T, text string) error {
			element, err := parse(text)
			*at(target) = append(*at(target), element)
			return err
		},
		Text: func(t *T) string { return fmt.Sprintf(format, *at(t)) },
		Copy: func(to, from *T) { *at(to) = slices.Clone(*at(from)) },
	}
}

// choice is one of some names.
func choice[T any, V fmt.Stringer, P interface {
	*V
	UnmarshalText(text []byte) error
}](at func(*T) *V) Value[T] {
	parse := func(text string) (v V, err error) {
		err = P(&v).UnmarshalText([]byte(text))
		return v, err
	}
	_, refusal := parse("") // names them all
	_, names, _ := strings.Cut(refusal.Error(), "use one of ")
	return scalar(at, "name", "`"+strings.ReplaceAll(names, ", ", "`, `")+"`", parse, V.String)
}

func number[T any, N uint8 | uint16 | uint32](at func(*T) *N, unit string, least, most N) Value[T] {
	values := fmt.Sprintf("%d to %d", least, most)
	if uint64(most) == math.MaxUint32 {
		values = fmt.Sprintf("from %d", least)
	}
	return scalar(at, unit, values, func(text string) (N, error) { return model.ParseNumber(text, least, most) },
		func(n N) string { return strconv.FormatUint(uint64(n), 10) })
}

func address[T any](at func(*T) *netip.Addr) Value[T] {
	return scalar(at, "address", "", model.ParseAddress, netip.Addr.String)
}

// vip is the one address of a service; of several, none.
func vip() Value[service] {
	return Value[service]{Unit: "address",
		Set: func(s *service, text string) (err error) {
			s.VIP, err = model.ParseAddress(text)
			return err
		},
		Text: func(s *service) string {
			if len(s.MoreVIPs) > 0 {
				return "none"
			}
			return s.VIP.String()
		},
		Copy: func(to, from *service) { to.VIP, to.MoreVIPs = from.VIP, nil },
	}
}

// vips are the addresses of a service, if they are several.
func vips() Value[service] {
	return Value[service]{Unit: "addresses", Values: fmt.Sprintf("1 to %d addresses", model.MaxVIPs), List: ",",
		Set: func(s *service, text string) error {
			address, err := model.ParseAddress(text)
			if err != nil {
				return err
			}
			return s.AddVIP(address)
		},
		Text: func(s *service) string {
			if len(s.MoreVIPs) == 0 {
				return "none"
			}
			return s.Where()
		},
		Copy: func(to, from *service) { to.VIP, to.MoreVIPs = from.VIP, slices.Clone(from.MoreVIPs) },
	}
}

// ports are single ones, ranges, or all.
func ports() Value[service] {
	return Value[service]{Unit: "ports", Values: fmt.Sprintf("1 to %d ports or ranges (`30000-32767`), or `all`", model.MaxPorts), List: ",",
		Set:  (*service).AddPorts,
		Text: (*service).PortsText,
		Copy: func(to, from *service) {
			to.Ports, to.PortRanges = slices.Clone(from.Ports), slices.Clone(from.PortRanges)
		},
	}
}

func prefix[T any](at func(*T) *model.Prefix) Value[T] {
	return scalar(at, "prefix", "", model.ParsePrefix, func(p model.Prefix) string {
		if !p.IsValid() {
			return ""
		}
		return p.String()
	})
}

func parseDuration(text string) (d model.Duration, err error) {
	err = d.UnmarshalText([]byte(text))
	return d, err
}

// span is a duration within a range: 0, which the model takes for "not given", never is.
func span[T any](at func(*T) *model.Duration, least, most model.Duration) Value[T] {
	return scalar(at, "duration", short(least)+" to "+short(most), func(text string) (model.Duration, error) {
		d, err := parseDuration(text)
		if err == nil && (d < least || d > most) {
			err = &model.Invalid{Problem: d.String() + " is out of range", Remedy: fmt.Sprintf("use %s to %s", least, most)}
		}
		return d, err
	}, model.Duration.String)
}

// short leaves out what is 0: 1h0m0s is 1h.
func short(d model.Duration) string {
	return strings.ReplaceAll(strings.ReplaceAll(d.String(), "m0s", "m"), "h0m", "h")
}

func parseText(text string) (string, error) {
	if text == "" {
		return "", &model.Invalid{Problem: "empty", Remedy: "give a name or remove the key"}
	}
	return text, nil
}

func text[T any](at func(*T) *string) Value[T] {
	return scalar(at, "text", "", parseText, strconv.Quote)
}

func name[T any](at func(*T) *string) Value[T] {
	return scalar(at, "name", "", parseText, func(name string) string { return name })
}

func moment[T any](at func(*T) *time.Time) Value[T] {
	return scalar(at, "time", "", func(text string) (time.Time, error) {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return at, &model.Invalid{Problem: fmt.Sprintf("%q is not a time", text), Remedy: "write it like 2026-01-31T23:00:00Z"}
		}
		return at.UTC(), nil
	}, func(at time.Time) string {
		if at.IsZero() {
			return "never"
		}
		return at.UTC().Format(time.RFC3339)
	})
}

// Named returns those of the fields that have the keys.
func Named[T any](fields []Field[T], keys ...string) (named []Field[T]) {
	for _, f := range fields {
		if slices.Contains(keys, f.Key) {
			named = append(named, f)
		}
	}
	return named
}
