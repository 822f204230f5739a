package yamltree

import (
	"slices"
	"strings"
	"testing"
)

func TestMisspelledKeysAreNearWhatWasMeant(t *testing.T) {
	names := []string{"dispatch", "health", "name", "ports", "protocol", "return", "servers", "service", "session", "tls", "vip"}
	for key, want := range map[string]string{
		"vpi": "vip", "vips": "vip", "vp": "vip", "VIP": "vip", "prots": "ports", "port": "ports", "dispatc": "dispatch", "dsipatch": "dispatch",
		"serves": "servers", "sersion": "session", "taps": "", "tlps": "tls", "sessoin": "session", "nane": "name", "mean": "", "tsl": "tls", "x": "", "": "", "colour": "", "vipvip": "",
		strings.Repeat("vip", 1000): "",
	} {
		if have := strings.Join(Near(key, names), " "); have != want {
			t.Errorf("%.20q: have %q, want %q", key, have, want)
		}
	}
	for _, name := range names {
		if have := Near(name, names); !slices.Equal(have, []string{name}) {
			t.Errorf("%s: have %q", name, have)
		}
	}
}

func TestTyposAreCounted(t *testing.T) {
	for words, want := range map[[2]string]int{
		{"", ""}: 0, {"", "abc"}: 3, {"abc", ""}: 3, {"abc", "abc"}: 0, {"abc", "acb"}: 1, {"abcd", "badc"}: 2, {"ca", "abc"}: 3,
		{"kitten", "sitting"}: 3, {"vpi", "vip"}: 1,
	} {
		if have := typos(words[0], words[1]); have != want {
			t.Errorf("%q: have %d, want %d", words, have, want)
		}
	}
}
