package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/schema"
)

// comeBack sends a T with each of the fields set to something on a way and back.
func comeBack[T any](t *testing.T, fields []schema.Field[T], blank T, way func(*T) (T, error)) {
	t.Helper()
	for _, f := range fields {
		names := strings.FieldsFunc(f.Allowed(), func(r rune) bool { return strings.ContainsRune("`, ", r) })
		sent := blank
		for _, text := range append(names, "9", "300", "10.0.0.9", "10.0.0.0/8", "3s", "/x", "2031-01-31T23:00:00Z") {
			given := blank
			if f.Key == "vips" { // two and more
				f.Set(&given, "2001:db8::9")
			}
			if f.Set(&given, text) == nil && f.Text(&given) != f.Text(&blank) {
				sent = given
			}
		}
		back, err := way(&sent)
		if have, want := f.Text(&back), f.Text(&sent); err != nil || have != want || want == f.Text(&blank) {
			t.Errorf("%s: %s came back as %s, %v", f.Key, want, have, err)
		}
	}
}

// stored reads what a store has of something.
func stored[T any](sent *T) (back T, err error) {
	text, err := json.Marshal(sent)
	if err == nil {
		err = json.Unmarshal(text, &back)
	}
	return back, err
}

// Stores, and what nodes keep, are JSON.
func TestEveryFieldComesBackFromAStore(t *testing.T) {
	service := model.NewService()
	service.ApplyDefaults() // what has none is not stored
	comeBack(t, schema.Service, service, stored)
	comeBack(t, schema.Server, model.NewServer(), stored)
	comeBack(t, schema.Node, model.Node{}, stored)
}

func TestEveryFieldComesBackFromTheWire(t *testing.T) {
	comeBack(t, schema.Service, model.NewService(), func(s *model.Service) (model.Service, error) { return ServiceFromProto(ServiceToProto(s)) })
	comeBack(t, schema.Server, model.NewServer(), func(s *model.Server) (model.Server, error) { return ServerFromProto(ServerToProto(s)) })
	comeBack(t, schema.Node, model.Node{}, func(n *model.Node) (model.Node, error) { return NodeFromProto(NodeToProto(n)) })
}
