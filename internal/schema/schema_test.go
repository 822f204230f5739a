package schema

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/doctest"
	"github.com/ballast-lb/ballast/internal/model"
)

// rows shows fields as rows of a table.
func rows[T any](section string, fields []Field[T]) string {
	var b strings.Builder
	b.WriteString("| key | values (default) | meaning |\n|---|---|---|\n")
	for _, f := range fields {
		allowed := f.Allowed()
		if allowed == "" {
			allowed = f.Unit
		}
		if f.Default != "" {
			allowed += " (" + f.Default + ")"
		}
		meaning := f.Doc
		if f.More != "" {
			meaning += ". " + f.More
		}
		fmt.Fprintf(&b, "| `%s%s` | %s | %s |\n", section, f.Key, allowed, meaning)
	}
	return b.String()
}

func TestDocsListEveryField(t *testing.T) {
	source := func(f Field[service]) bool { return strings.HasPrefix(f.Key, SourceSection+".") }
	doctest.Show(t, "fields", map[string]string{
		"fleet": rows("", Fleet), "service": rows("", slices.DeleteFunc(slices.Clone(Service), source)), "source": rows("servers.", Source),
		"server": rows("", Server), "node": rows("", Node),
	}, "../../docs/run/configure.md")
}

func keys[T any](fields []Field[T]) (keys []string) {
	for _, f := range fields {
		keys = append(keys, f.Key)
	}
	return keys
}

// inJSON returns the keys of a struct of the model.
func inJSON(of reflect.Type, but ...string) (keys []string) {
	for i := range of.NumField() {
		key, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		inner := of.Field(i).Type
		switch {
		case slices.Contains(but, key) || key == "-":
		case inner.Kind() == reflect.Struct && strings.HasSuffix(inner.PkgPath(), "internal/model") && inner != reflect.TypeFor[model.Prefix]() && inner != reflect.TypeFor[model.RouterID]():
			for _, one := range inJSON(inner) {
				keys = append(keys, key+"."+one)
			}
		default:
			keys = append(keys, key)
		}
	}
	return keys
}

func TestEveryFieldOfTheModelIsDescribed(t *testing.T) {
	for _, c := range []struct{ described, there []string }{
		{keys(Service), inJSON(reflect.TypeFor[model.Service](), "servers", "port_ranges")}, // ports are both
		{keys(Server), inJSON(reflect.TypeFor[model.Server]())},
		{keys(Node), inJSON(reflect.TypeFor[model.Node]())},
		{keys(Health), inJSON(reflect.TypeFor[model.Health]())},
		{keys(Fleet), inJSON(reflect.TypeFor[model.Fleet](), "services", "nodes", "node_health")},
	} {
		if i := slices.Index(c.there, "more_vips"); i >= 0 {
			c.there[i] = "vips" // with vip before them
		}
		if !slices.Equal(c.described, c.there) {
			t.Errorf("described are %q, the model has %q", c.described, c.there)
		}
	}
}

// compareDefaults compares what is said of defaults with those of a T, and returns how many do not depend on others.
func compareDefaults[T any](t *testing.T, fields []Field[T], defaults *T) (compared int) {
	for _, f := range fields {
		said, _, _ := strings.Cut(strings.ReplaceAll(f.Default, ":", ";"), ";")
		var want T
		if said == "" || f.Key == "name" || f.Set(&want, said) != nil {
			continue
		}
		if compared++; f.Text(defaults) != f.Text(&want) {
			t.Errorf("%s: %s by default, not %s", f.Key, f.Text(defaults), f.Text(&want))
		}
	}
	return compared
}

func TestDefaultsAreThoseThatAreDescribed(t *testing.T) {
	plain, table := model.NewService(), model.NewService()
	plain.Servers = []model.Server{model.NewServer()}
	table.Affinity, table.Health.Check = model.AffinityTable, model.CheckHTTP
	offered := model.NewService()
	offered.Dispatch = model.DispatchChoices
	quic := model.NewService()
	quic.Affinity = model.AffinityQUIC
	joined := model.NewService()
	joined.MPTCP.FirstPort = 1
	joined.ApplyDefaults()
	bySource := model.NewService()
	bySource.Placement.Over = model.PlaceSource
	bySource.ApplyDefaults()
	limited := model.NewService()
	limited.SourceLimit.Rate = 1
	limited.ApplyDefaults()
	plain.ApplyDefaults()
	table.ApplyDefaults()
	offered.ApplyDefaults()
	quic.ApplyDefaults()
	plain.Table, plain.Health.Path, plain.Choices, plain.QUIC = table.Table, table.Health.Path, offered.Choices, quic.QUIC
	plain.MPTCP.Ports = joined.MPTCP.Ports
	plain.Placement.IPv4Prefix, plain.Placement.IPv6Prefix = bySource.Placement.IPv4Prefix, bySource.Placement.IPv6Prefix
	plain.SourceLimit.IPv4Prefix, plain.SourceLimit.IPv6Prefix = limited.SourceLimit.IPv4Prefix, limited.SourceLimit.IPv6Prefix
	if n := compareDefaults(t, Service, &plain) + compareDefaults(t, Server, &plain.Servers[0]); n < 25 {
		t.Errorf("compared only %d", n)
	}
}
