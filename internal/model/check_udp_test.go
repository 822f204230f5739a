package model

import (
	"strings"
	"testing"
)

func TestChecksByUDPThatCannotSucceedAreRefused(t *testing.T) {
	for _, test := range []struct {
		health Health
		want   string // in the message; empty: it is taken
	}{
		{Health{Check: CheckUDP, Send: "ping"}, ""},
		{Health{Check: CheckUDP, Send: "hex:00ff", Expect: "hex:00", Contains: "x"}, ""},
		{Health{Check: CheckUDP}, "send"},
		{Health{Check: CheckUDP, Send: "hex:"}, "send"},
		{Health{Check: CheckUDP, Send: "hex:0"}, "hexadecimal"},
		{Health{Check: CheckUDP, Send: "ping", Expect: "hex:zz"}, "hexadecimal"},
		{Health{Check: CheckUDP, Send: strings.Repeat("a", MaxCheckBytes+1)}, "1201"},
		{Health{Check: CheckTCP, Send: "ping"}, "has no use"},
		{Health{Check: CheckDNS, Query: "example.com AAAA", RCode: "nxdomain"}, ""},
		{Health{Check: CheckDNS, Query: "example.com"}, ""},
		{Health{Check: CheckDNS}, "query"},
		{Health{Check: CheckDNS, Query: "example.com A b"}, "query"},
		{Health{Check: CheckDNS, Query: "example.com ZZ"}, "type"},
		{Health{Check: CheckDNS, Query: strings.Repeat("a", 64) + ".example A"}, "query"},
		{Health{Check: CheckDNS, Query: "a A", RCode: "FINE"}, "rcode"},
	} {
		var found findings
		test.health.applyDefaults()
		test.health.validate("health", &found)
		text := ""
		if err := found.join(); err != nil {
			text = err.Error()
		}
		if (text == "") != (test.want == "") || !strings.Contains(text, test.want) {
			t.Errorf("%+v: %q, wanted %q", test.health, text, test.want)
		}
	}
}
