package bgp

import (
	"bytes"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/ballast-lb/ballast/internal/api"
)

func TestPasswordsThatOthersCanReadAreRefusedAndNeverShown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	for want, c := range map[string]struct {
		content string
		mode    os.FileMode
	}{
		"others can read it (mode 0640): chmod 600": {"secret\n", 0o640},
		"its first line has 0 bytes":                {"\nsecret", 0o600},
		"its first line has 81 bytes":               {strings.Repeat("s", 81), 0o600},
	} {
		os.Remove(path)
		if err := os.WriteFile(path, []byte(c.content), c.mode); err != nil {
			t.Fatal(err)
		}
		if password, err := readPassword(path); err == nil || password != "" || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sss") {
			t.Errorf("%q, %v, not %s", password, err, want)
		}
	}
	os.Remove(path)
	if _, err := readPassword(path); err == nil {
		t.Error("a file that is missing is taken")
	}
	os.WriteFile(path, []byte("two words\nand more"), 0o600)
	if password, err := readPassword(path); err != nil || password != "two words" {
		t.Errorf("%q, %v", password, err)
	}
}

func TestIPv4RoutesGoByIPv6SessionsOnlyWhereTheRouterTakesTheirNextHops(t *testing.T) {
	both := []bgp.Family{bgp.RF_IPv6_UC, bgp.RF_IPv4_UC}
	mp4, mp6 := bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC), bgp.NewCapMultiProtocol(bgp.RF_IPv6_UC)
	hops := bgp.NewCapExtendedNexthop([]*bgp.CapExtendedNexthopTuple{bgp.NewCapExtendedNexthopTuple(bgp.RF_IPv4_UC, bgp.AFI_IP6)})
	for _, c := range []struct {
		offered []bgp.Family
		theirs  []bgp.ParameterCapabilityInterface
		ipv6    bool
		want    []string
	}{
		{both, []bgp.ParameterCapabilityInterface{mp4, mp6, hops}, true, []string{"ipv4", "ipv6"}},
		{both, []bgp.ParameterCapabilityInterface{mp4, mp6}, true, []string{"ipv6"}},
		{both, []bgp.ParameterCapabilityInterface{mp6, hops}, true, []string{"ipv6"}},
		{both, []bgp.ParameterCapabilityInterface{mp4}, true, nil},
		{both, nil, true, nil},
		{both[1:], nil, false, []string{"ipv4"}},
		{both[1:], []bgp.ParameterCapabilityInterface{mp6}, false, nil},
		{both[1:], []bgp.ParameterCapabilityInterface{mp4}, false, []string{"ipv4"}},
	} {
		if have := familyNames(agreed(c.offered, c.theirs, c.ipv6)); !slices.Equal(have, c.want) {
			t.Errorf("%+v: %v", c, have)
		}
	}
}

func TestWhatGoBGPSaysOfANeighbourIsKeptAndErrorsAreLogged(t *testing.T) {
	var out bytes.Buffer
	n := newNotes(slog.New(slog.NewTextHandler(&out, nil)))
	peer := slog.New(n).With("Topic", "Peer", "Key", "192.0.2.1")
	router := netip.MustParseAddr("192.0.2.1")
	peer.Debug("failed to connect", "Error", "connection refused")
	if last := n.last(router); last != "cannot connect: connection refused" {
		t.Errorf("%q", last)
	}
	peer.Info("sent notification", "Code", 2, "Subcode", 2)
	peer.Info("something else")
	if last := n.last(router); last != "refused: it is in another AS than configured (2/2)" {
		t.Errorf("%q", last)
	}
	peer.Info("received notification", "Code", 9, "Subcode", 1)
	if last := n.last(router); last != "it says: notification 9/1" {
		t.Errorf("%q", last)
	}
	if out.Len() > 0 {
		t.Errorf("the log is %s", out.String())
	}
	if peer.Error("broken"); !strings.Contains(out.String(), "BGP: broken") || !strings.Contains(out.String(), "192.0.2.1") {
		t.Errorf("the log is %s", out.String())
	}
	if n.forget(router); n.last(router) != "" {
		t.Error("not forgotten")
	}
}

func TestASessionThatHasJustBeenBegunIsNoProblemUntilItFailsOrHasNoAnswer(t *testing.T) {
	now := time.Unix(1700000000, 0)
	for name, c := range map[string]struct {
		neighbor api.BGPNeighbor
		says     string
	}{
		"just begun":                {api.BGPNeighbor{Why: noAnswer, Since: now.Add(-firstAttempt + time.Second)}, ""},
		"no answer":                 {api.BGPNeighbor{Why: noAnswer, Since: now.Add(-firstAttempt)}, noAnswer},
		"just begun, and refused":   {api.BGPNeighbor{Why: "connection refused", Since: now}, "connection refused"},
		"up":                        {api.BGPNeighbor{Up: true, Since: now.Add(-time.Hour)}, ""},
		"down after it has been up": {api.BGPNeighbor{Why: "hold timer expired", Since: now}, "hold timer expired"},
	} {
		said := sessionProblem(&c.neighbor, now)
		if (said == "") != (c.says == "") || !strings.Contains(said, c.says) {
			t.Errorf("%s: %q, want %q", name, said, c.says)
		}
	}
}
