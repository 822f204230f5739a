package announce

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var (
	begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	web   = netip.MustParsePrefix("198.51.100.10/32")
	dns   = netip.MustParsePrefix("2001:db8::53/128")
)

const delay = 5 * time.Second

func wanted(vips map[netip.Prefix]string) *Wanted { return &Wanted{VIPs: vips, Delay: delay} }

// tell is what came out, in short: "+" announced, "-" withdrawn.
func tell(actions []Action) (text string) {
	for _, a := range actions {
		sign := "-"
		if a.Announce {
			sign = "+"
		}
		text += sign + strings.Map(func(r rune) rune {
			if strings.ContainsRune("0123456789", r) {
				return r
			}
			return -1
		}, a.VIP.Addr().String())[:2] + " "
	}
	return strings.TrimSpace(text)
}

// looks plays a story: each line is a second's condition of web, empty: good.
func looks(t *testing.T, m *Machine, from int, conditions []string, want ...string) {
	t.Helper()
	for i, condition := range conditions {
		actions, _ := m.Step(begin.Add(time.Duration(from+i)*time.Second), wanted(map[netip.Prefix]string{web: condition}))
		if got := tell(actions); got != want[i] {
			t.Errorf("second %d: %q, not %q", from+i, got, want[i])
		}
	}
}

func TestAVIPIsAnnouncedAtOnceAndAgainOnlyAfterItHeld(t *testing.T) {
	var m Machine
	looks(t, &m, 0, []string{"no server", "no server", "", ""}, "", "", "+19", "")
	looks(t, &m, 4, []string{"no server", "", "", "", "", "", "", ""}, "-19", "", "", "", "", "", "+19", "")
	looks(t, &m, 12, []string{"x", "", "", "x", "", "", "", "", ""}, "-19", "", "", "", "", "", "", "", "")
	if s := m.Status(); len(s) != 1 || s[0].Announced || s[0].Why != Waiting || !s[0].Since.Equal(begin.Add(12*time.Second)) {
		t.Errorf("%+v", s)
	}
	looks(t, &m, 21, []string{"", ""}, "+19", "")
}

func TestItSaysWhenToLookAgain(t *testing.T) {
	var m Machine
	step := func(second int, condition string) time.Time {
		_, next := m.Step(begin.Add(time.Duration(second)*time.Second), wanted(map[netip.Prefix]string{web: condition, dns: ""}))
		return next
	}
	step(0, "")
	step(1, "x")
	if next := step(2, ""); !next.Equal(begin.Add(7 * time.Second)) {
		t.Errorf("%v", next)
	}
	if next := step(7, ""); !next.IsZero() {
		t.Errorf("%v", next)
	}
}

func TestADrainWithdrawsAllAtOnce(t *testing.T) {
	var m Machine
	both := map[netip.Prefix]string{web: "", dns: ""}
	m.Step(begin, wanted(both))
	actions, _ := m.Step(begin, &Wanted{VIPs: both, Stop: "drained", Delay: delay})
	if got := tell(actions); got != "-19 -20" || actions[0].Why != "drained" {
		t.Errorf("%q %+v", got, actions)
	}
}

func TestAServiceThatGoesIsWithdrawnAndForgotten(t *testing.T) {
	var m Machine
	m.Step(begin, wanted(map[netip.Prefix]string{web: "", dns: ""}))
	actions, _ := m.Step(begin, wanted(map[netip.Prefix]string{dns: ""}))
	if tell(actions) != "-19" || actions[0].Why != Gone || len(m.Status()) != 1 {
		t.Errorf("%+v, %+v", actions, m.Status())
	}
	actions, _ = m.Step(begin, wanted(map[netip.Prefix]string{web: "", dns: ""})) // a new service: nothing to wait for
	if tell(actions) != "+19" {
		t.Errorf("%+v", actions)
	}
}

func TestARestartWithdrawsNothingUntilItIsKnownThatItMust(t *testing.T) {
	grace := begin.Add(10 * time.Second)
	var m Machine
	if got := tell(m.Resume([]netip.Prefix{web, dns}, begin, grace)); got != "+19 +20" {
		t.Fatal(got)
	}
	step := func(second int, w *Wanted) string {
		actions, _ := m.Step(begin.Add(time.Duration(second)*time.Second), w)
		return tell(actions)
	}
	unknown := wanted(map[netip.Prefix]string{web: "no next hop", dns: "no next hop"})
	if got := step(1, unknown); got != "" {
		t.Errorf("withdrawn in the grace: %q", got)
	}
	if got := step(2, wanted(map[netip.Prefix]string{web: "", dns: "no next hop"})); got != "" {
		t.Errorf("%q", got)
	}
	if got := step(3, wanted(map[netip.Prefix]string{web: "no next hop", dns: "no next hop"})); got != "-19" { // that it is good was known
		t.Errorf("%q", got)
	}
	if _, next := m.Step(begin.Add(4*time.Second), unknown); !next.Equal(grace) {
		t.Errorf("looks again at %v", next)
	}
	if got := step(10, unknown); got != "-20" {
		t.Errorf("%q", got)
	}
	m.Resume([]netip.Prefix{web, dns}, begin, grace)
	if got := step(1, &Wanted{VIPs: map[netip.Prefix]string{web: "", dns: ""}, Stop: "drained"}); got != "-19 -20" {
		t.Errorf("a drain while it was away: %q", got)
	}
	m.Resume([]netip.Prefix{web, dns}, begin, grace)
	if got := step(1, wanted(map[netip.Prefix]string{web: "x"})); got != "-20" {
		t.Errorf("a service that went while it was away: %q", got)
	}
}

// What is announced is always what the actions say, is never bad for longer than the grace, and is not announced twice within the delay.
func TestActionsAreWhatIsAnnounced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m Machine
		told, left := map[netip.Prefix]bool{}, map[netip.Prefix]time.Time{}
		now := begin
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond)
			vips := map[netip.Prefix]string{}
			for _, prefix := range []netip.Prefix{web, dns} {
				if condition := rapid.SampledFrom([]string{"", "", "bad", "gone"}).Draw(t, "condition"); condition != "gone" {
					vips[prefix] = condition
				}
			}
			w := wanted(vips)
			w.Stop = rapid.SampledFrom([]string{"", "", "", "drained"}).Draw(t, "stop")
			actions, _ := m.Step(now, w)
			for _, a := range actions {
				if told[a.VIP] == a.Announce {
					t.Fatalf("step %d: %+v twice", i, a)
				}
				if at, before := left[a.VIP]; a.Announce && before && now.Sub(at) < delay {
					t.Fatalf("step %d: %s is back after %v", i, a.VIP, now.Sub(at))
				}
				if told[a.VIP] = a.Announce; !a.Announce {
					left[a.VIP] = now
				}
			}
			for prefix := range told {
				if _, there := vips[prefix]; !there {
					delete(left, prefix) // it is a new one from now on
				}
				if condition, there := vips[prefix]; told[prefix] && (!there || condition != "" || w.Stop != "") {
					t.Fatalf("step %d: %s is announced and %q", i, prefix, condition)
				}
			}
			var list []netip.Prefix
			for prefix, announced := range told {
				if announced {
					list = append(list, prefix)
				}
			}
			slices.SortFunc(list, comparePrefixes)
			if fmt.Sprint(list) != fmt.Sprint(m.Announced()) {
				t.Fatalf("step %d: %v, and told %v", i, m.Announced(), list)
			}
		}
	})
}
