package peer

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestMistakesInAPeersFileAreRefusedWithTheirLines(t *testing.T) {
	text, err := os.ReadFile("testdata/peer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parse("peer.yaml", text); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"vip: 198.51.100.100\n", "", "peer.yaml:1: vip: missing: add it"},
		{"destinations: [10.1.0.1]\n", "", "peer.yaml:1: destinations: missing: list the servers"},
		{"packets: tcp", "packets: sctp", `peer.yaml:13: packets: unknown value "sctp": use one of tcp, tcp-syn, udp`},
		{"packets: tcp", "packets: udp\nvip: 2001:db8::1", "peer.yaml:14: vip: repeated"},
		{"growth: 20", "growth: 900", "peer.yaml:14: growth: 900 is out of range: use 0 to 100"},
		{"value: 0a01 0001", "value: 10.1.0.1", `peer.yaml:7: maps[0].value: "10.1.0.1" is not bytes in hexadecimal`},
		{"offset: 8", "at: 8", "peer.yaml:16: counter.at: unknown key"},
		{"name: peer", "name: ''", "peer.yaml:1: name: empty"},
	} {
		broken := strings.Replace(string(text), c.old, c.new, 1)
		if _, err := parse("peer.yaml", []byte(broken)); err == nil || !strings.HasPrefix(fmt.Sprint(err), c.want) {
			t.Errorf("%q: have %v, want %s", c.new, err, c.want)
		}
	}
}
