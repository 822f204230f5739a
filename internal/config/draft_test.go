package config_test

import (
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestADraftMayLackWhatOthersFillIn(t *testing.T) {
	draft, err := config.ParseDraft("x.yaml", []byte("services:\n  - name: web\n    servers:\n      - address: 10.0.0.1\n"))
	if err != nil {
		t.Fatal(err)
	}
	s := draft.Fleet.Services[0]
	if s.Servers[0].ID != 0 || s.Servers[0].Weight != model.WeightUnset || s.Dispatch != model.DispatchUnset || draft.HasKeys {
		t.Errorf("something was filled in: %+v", draft)
	}
	for path, line := range map[string]int{"services[0].name": 2, "services[0].vip": 2, "services[0].servers[0].id": 4, "keys": 1} {
		if got := draft.Line(path); got != line {
			t.Errorf("%s is on line %d, not %d", path, got, line)
		}
	}
}

func TestADraftIsReadStrictly(t *testing.T) {
	for text, want := range map[string]string{
		"services: [{colour: red}]": "x.yaml:1: services[0].colour: unknown key",
		"keys: {current: 1}":        "services: missing",
		"":                          "empty",
	} {
		if _, err := config.ParseDraft("x.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, wanted a refusal that says %q", text, err, want)
		}
	}
	if draft, err := config.ParseDraft("x.yaml", []byte("keys: {current: 1}\nservices: []")); err != nil || !draft.HasKeys {
		t.Errorf("%+v, %v", draft, err)
	}
}
