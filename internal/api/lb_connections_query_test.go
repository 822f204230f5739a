package api

import (
	"math"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestDurationsThatDoNotFitAreRefused(t *testing.T) {
	for _, text := range []string{"NaN", "Inf", "-Inf", "1e12", "1e400", "-1", "9223372036.9", "soon", ""} {
		for _, filter := range []string{"min_age", "min_idle"} {
			if q, err := ParseConnectionQuery(url.Values{filter: {text}}); err == nil || !strings.Contains(err.Error(), filter) || !strings.Contains(err.Error(), "seconds") {
				t.Errorf("%s=%s: %+v, %v", filter, text, q, err)
			}
		}
	}
	for text, want := range map[string]time.Duration{"0": 0, "0.02": 20 * time.Millisecond, "9223372036": math.MaxInt64 / time.Second * time.Second} {
		if q, err := ParseConnectionQuery(url.Values{"min_age": {text}}); err != nil || q.MinAge.Duration() != want {
			t.Errorf("%s: %s, %v", text, q.MinAge.Duration(), err)
		}
	}
}

func TestANetworkOfIPv4IsIPv4However(t *testing.T) {
	for text, want := range map[string]string{
		"::ffff:10.0.0.0/104": "10.0.0.0/8", "::ffff:10.1.2.3/128": "10.1.2.3/32", "::ffff:10.1.2.3": "10.1.2.3/32", "::ffff:0:0/96": "0.0.0.0/0",
		"10.1.2.3/8": "10.0.0.0/8", "2001:db8::1/32": "2001:db8::/32", "::/0": "::/0",
	} {
		if got, err := ParseNetwork(text); err != nil || got != netip.MustParsePrefix(want) {
			t.Errorf("%s: %s, not %s; %v", text, got, want, err)
		}
	}
	if got, err := ParseNetwork("::ffff:10.0.0.0/24"); err == nil || !strings.Contains(err.Error(), "96 bits or more") {
		t.Errorf("%s, %v", got, err)
	}
}
