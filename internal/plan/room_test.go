package plan

import (
	"fmt"
	"strings"
	"testing"
)

func TestARefusalForWantOfRoomNamesTheFlagAndAValueThatDoes(t *testing.T) {
	want := func() *Want {
		return withPaths(&Want{Keys: testKeys(1), Services: []Service{testService("a", vipAt(0), 1, 2, 3), testService("b", vipAt(1), 1, 4)}})
	}
	for flag, limits := range map[string]Limits{
		"--max-servers ": {Services: 8, Servers: 4, ServerIDs: 4096, Slots: 8192, Rounds: 4096},
		"--max-slots ":   {Services: 8, Servers: 64, ServerIDs: 4096, Slots: 64, Rounds: 4096},
	} {
		_, err := NewTables(limits).Update(want())
		if err == nil {
			t.Fatalf("%sis not needed", flag)
		}
		_, after, named := strings.Cut(err.Error(), flag)
		var value uint32
		if _, err := fmt.Sscan(after, &value); !named || err != nil {
			t.Fatalf("%q names no %s", err, flag)
		}
		enough, less := limits, limits
		if flag == "--max-servers " {
			enough.Servers, less.Servers = value, value-1
		} else {
			enough.Slots, less.Slots = value, value/2-1
		}
		if _, err := NewTables(less).Update(want()); err == nil {
			t.Errorf("%s%d is more than is needed", flag, value)
		}
		n := &node{t, NewTables(enough), newMemory()}
		n.update(want())
	}
}
