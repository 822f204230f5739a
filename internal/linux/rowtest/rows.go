// Package rowtest compares structs that are written into maps as they are with those of the programs.
package rowtest

import (
	"reflect"
	"strings"
	"testing"
)

// Same fails the test unless both structs, ours and what bpf2go has made of BTF, have the same fields at the same places. Upper and
// lower case are one; padding has no name in ours.
func Same(t *testing.T, ours, theirs any) {
	t.Helper()
	have, want := reflect.TypeOf(ours), reflect.TypeOf(theirs)
	if have.Size() != want.Size() {
		t.Errorf("%v has %d bytes, %v %d", have, have.Size(), want, want.Size())
	}
	wanted := fields(want)
	for name, field := range fields(have) {
		if of, ok := wanted[name]; !ok || of != field {
			t.Errorf("%v.%s has the place %+v; %v: %+v", have, name, field, want, of)
		}
		delete(wanted, name)
	}
	for name := range wanted {
		t.Errorf("%v has no field %s of %v", have, name, want)
	}
}

type place struct{ offset, size uintptr }

func fields(of reflect.Type) map[string]place {
	found := map[string]place{}
	for i := range of.NumField() {
		if f := of.Field(i); f.Name != "_" && !strings.HasPrefix(f.Name, "Pad") {
			found[strings.ToLower(f.Name)] = place{f.Offset, f.Type.Size()}
		}
	}
	return found
}
