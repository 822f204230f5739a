package rotation

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// secretOf is that of a number, another one for each.
func secretOf(n int) (s TicketSecret) {
	copy(s[:], fmt.Sprintf("secret %d", n))
	return s
}

// settled takes steps until nothing changes at that time, with all servers up to date.
func settled(t TicketKeys, now time.Time, drawn *int) TicketKeys {
	for {
		*drawn++
		next, changes := t.Step(now, secretOf(*drawn), nil)
		if len(changes) == 0 {
			return t
		}
		t = next
	}
}

// A ticket is shown to a server while it lives: of all servers, each of which may hear of keys late, but not for longer than a key waits for it.
func TestEveryServerReadsEveryTicketThatHasNotExpired(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const servers = 3
		type ticket struct {
			by   TicketSecret
			made time.Time
		}
		var fleet TicketKeys
		var have [servers]TicketKeys
		var synced [servers]time.Time
		var tickets []ticket
		now, drawn := began, 0
		next := func() {
			for range 4 {
				var behind []string
				upcoming := fleet.Key(fleet.Next())
				for i := range have {
					if upcoming != nil && !holds(&have[i], upcoming.Secret) {
						behind = append(behind, fmt.Sprint("server ", i))
					}
				}
				drawn++
				fleet, _ = fleet.Step(now, secretOf(drawn), behind)
			}
		}
		next()
		for i := range have {
			have[i], synced[i] = fleet, now
		}
		for range rapid.IntRange(50, 150).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 6).Draw(t, "hours")) * time.Hour)
			for i := range have {
				if rapid.IntRange(0, 7).Draw(t, "hears") == 0 || now.Sub(synced[i]) >= ticketPeriod+ticketPatience-6*time.Hour {
					have[i], synced[i] = fleet, now
				}
			}
			if fleet.Next() != 0 && rapid.IntRange(0, 9).Draw(t, "somebody turns") == 0 && len(fleet.Full()) == 0 {
				all := true
				for i := range have {
					all = all && holds(&have[i], fleet.Key(fleet.Next()).Secret)
				}
				if all {
					fleet = fleet.Using(now, fleet.Next())
				}
			}
			next()
			if len(fleet.Keys) > TicketKeysMax {
				t.Fatalf("%d keys", len(fleet.Keys))
			}
			for i := range have {
				made := ticket{have[i].Key(have[i].Current).Secret, now}
				if !slices.Contains(tickets, made) {
					tickets = append(tickets, made)
				}
			}
			tickets = slices.DeleteFunc(tickets, func(made ticket) bool { return now.Sub(made.made) > ticketLife })
			for _, made := range tickets {
				for i := range have {
					if !holds(&have[i], made.by) {
						t.Fatalf("server %d, of %v ago, does not read a ticket of %v ago", i, now.Sub(synced[i]), now.Sub(made.made))
					}
				}
			}
		}
	})
}

func holds(t *TicketKeys, secret TicketSecret) bool {
	return slices.ContainsFunc(t.Keys, func(k TicketKey) bool { return k.Secret == secret })
}

func TestAKeyIsMadeLongBeforeItIsUsedAndDroppedLongAfter(t *testing.T) {
	drawn := 0
	keys := settled(TicketKeys{}, began, &drawn)
	if keys.Current != 1 || keys.Next() != 2 || len(keys.Keys) != 2 {
		t.Fatalf("at first %+v", keys)
	}
	if again := settled(keys, began.Add(ticketPeriod-time.Second), &drawn); again.Current != 1 {
		t.Errorf("epoch %d is used too early", again.Current)
	}
	for day := 1; day <= 30; day++ {
		keys = settled(keys, began.Add(time.Duration(day)*ticketPeriod), &drawn)
		if keys.Current != uint32(day+1) || keys.Next() != uint32(day+2) {
			t.Fatalf("day %d: %+v", day, keys)
		}
	}
	if n := len(keys.Keys); n < 10 || n > 12 {
		t.Errorf("%d keys after a month", n)
	}
}

// Promise: An agent that is cut off during a rotation of ticket keys loses nothing for 2 days, of which the next
// key waits one; after that, sessions begin again there until it is back.
// Also held by TestEveryServerReadsEveryTicketThatHasNotExpired.
func TestTheNextKeyWaitsForServersForADayAndNoLonger(t *testing.T) {
	drawn := 0
	keys := settled(TicketKeys{}, began, &drawn)
	behind := []string{"agent s2 does not have it"}
	for _, at := range []struct {
		after time.Duration
		used  bool
	}{{ticketPeriod, false}, {ticketPeriod + ticketPatience - time.Second, false}, {ticketPeriod + ticketPatience, true}} {
		next, changes := keys.Step(began.Add(at.after), secretOf(99), behind)
		if used := next.Current == 2; used != at.used {
			t.Errorf("after %v: used %v, %q", at.after, used, changes)
		} else if used && !strings.Contains(strings.Join(changes, "\n"), behind[0]) {
			t.Errorf("%q does not say who lacks it", changes)
		}
	}
}

// A controller's clock was a year ahead for a moment.
//
// Promise: A controller's clock that is ahead may drop ticket keys early, so that sessions begin again once;
// rotation goes on when the clock is right.
func TestAClockThatWasAheadDoesNotStopRotation(t *testing.T) {
	drawn := 0
	keys := settled(TicketKeys{}, began.AddDate(1, 0, 0), &drawn)
	keys = settled(keys, began, &drawn)
	if !keys.Since.Equal(began) {
		t.Fatalf("in use since %v", keys.Since)
	}
	for day := 1; day <= 40; day++ {
		keys = settled(keys, began.Add(time.Duration(day)*ticketPeriod), &drawn)
	}
	if keys.Current != 41 || len(keys.Keys) > TicketKeysMax {
		t.Errorf("after 40 days epoch %d, %d keys", keys.Current, len(keys.Keys))
	}
	if skewed, _ := keys.Step(keys.Since.Add(-time.Minute), secretOf(99), nil); !skewed.Since.Equal(keys.Since) {
		t.Error("a minute between two controllers' clocks counts")
	}
}

func TestSomebodyMayGoBackToTheKeyBefore(t *testing.T) {
	drawn := 0
	keys := settled(TicketKeys{}, began, &drawn)
	keys = settled(keys.Using(began.Add(time.Minute), 2), began.Add(time.Minute), &drawn)
	keys = settled(keys.Using(began.Add(time.Hour), 1), began.Add(time.Hour), &drawn)
	if keys.Current != 1 || keys.Next() != 2 || len(keys.Keys) != 3 {
		t.Errorf("back: %+v", keys)
	}
	keys = settled(keys, began.Add(time.Hour+ticketPeriod), &drawn)
	if keys.Current != 2 || !keys.Key(2).Until.IsZero() || keys.Key(1).Until.IsZero() {
		t.Errorf("and on: %+v", keys)
	}
}

func TestRevokedKeysAreGone(t *testing.T) {
	drawn := 0
	before := settled(TicketKeys{}, began, &drawn)
	after := settled(before.Revoked(began.Add(time.Minute), secretOf(50)), began.Add(time.Minute), &drawn)
	if after.Current != 3 || len(after.Keys) != 2 {
		t.Fatalf("%+v", after)
	}
	for i := range before.Keys {
		if holds(&after, before.Keys[i].Secret) {
			t.Errorf("epoch %d is there", before.Keys[i].Epoch)
		}
	}
}

func TestTooManyTurnsAreRefused(t *testing.T) {
	drawn := 0
	keys := settled(TicketKeys{}, began, &drawn)
	turns := 0
	for ; len(keys.Full()) == 0; turns++ {
		keys = settled(keys.Using(began, keys.Next()), began, &drawn)
	}
	if turns != TicketKeysMax-2 || !strings.Contains(keys.Full()[0], "epoch 1 would be dropped") {
		t.Errorf("%d turns, then %q", turns, keys.Full())
	}
	if keys = settled(keys.Using(began, keys.Next()), began, &drawn); len(keys.Keys) != TicketKeysMax || keys.Key(1) != nil {
		t.Errorf("by force: %d keys", len(keys.Keys))
	}
}

// Promise: A stolen server has its own services' ticket keys of the last 9 days and the next day, and no other
// service's; `ballast ctl ticket revoke` ends their use.
// Also held by TestRevokedKeysAreGone.
func TestKeysOfServicesTellNothingOfEachOther(t *testing.T) {
	drawn := 0
	keys := settled(TicketKeys{}, began, &drawn)
	web, mail := keys.Of("web"), keys.Of("mail")
	if err := web.Validate(); err != nil {
		t.Error(err)
	}
	if web.Keys[0].Secret == mail.Keys[0].Secret || web.Keys[0].Secret == keys.Keys[0].Secret || web.Keys[0].Secret == web.Keys[1].Secret {
		t.Error("two keys are one")
	}
	for _, wrong := range []func(*ServiceTickets){
		func(s *ServiceTickets) { s.Keys = nil },
		func(s *ServiceTickets) { s.Current = 7 },
		func(s *ServiceTickets) { s.Keys[1].Secret = TicketSecret{} },
		func(s *ServiceTickets) { s.Keys[0].Fingerprint = nil },
		func(s *ServiceTickets) { s.Keys[0].Epoch = 2 },
		func(s *ServiceTickets) { s.Keys = make([]ServiceTicketKey, TicketKeysMax+1) },
	} {
		s := keys.Of("web")
		if wrong(&s); s.Validate() == nil {
			t.Errorf("%v is taken", s)
		}
	}
}

func TestTicketSecretsAreNotPrinted(t *testing.T) {
	drawn := 0
	keys := settled(TicketKeys{}, began, &drawn)
	of := keys.Of("web")
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q"} {
		said := fmt.Sprintf(verb+verb+verb, keys, &keys.Keys[0], of)
		for _, secret := range []TicketSecret{keys.Keys[0].Secret, of.Keys[0].Secret} {
			for _, form := range []string{fmt.Sprintf("%x", secret[:4]), fmt.Sprint(secret[0], " ", secret[1], " ", secret[2]), fmt.Sprintf("%#x, %#x", secret[0], secret[1])} {
				if strings.Contains(said, form) {
					t.Errorf("%s: %s", verb, said)
				}
			}
		}
	}
	text, err := json.Marshal(of) // state files have them
	var again ServiceTickets
	if err := json.Unmarshal(text, &again); err != nil || again.Validate() != nil || again.Keys[0].Secret != of.Keys[0].Secret {
		t.Errorf("%s: %v", text, err)
	}
	if err != nil {
		t.Error(err)
	}
}

func TestServersThatLackAKeyAreNamed(t *testing.T) {
	drawn := 0
	keys := settled(TicketKeys{}, began, &drawn)
	key := keys.Key(2)
	has := &Report{Tickets: map[uint32][]byte{2: key.Fingerprint()}}
	other := &Report{Tickets: map[uint32][]byte{2: []byte("12345678")}}
	fleet := &model.Fleet{Services: []model.Service{
		{Name: "web", Session: model.SessionTLS, Servers: []model.Server{{Name: "s1"}, {Name: "s2"}, {Name: "s3"}, {Name: "x", Address: netip.MustParseAddr("10.0.0.4")},
			{Name: "s5"}, {Name: "gone", State: model.StateOff}, {Name: "s6"}}},
		{Name: "plain", Servers: []model.Server{{Name: "s9"}}},
	}}
	nodes := &Nodes{List: []Node{{Name: "s6"}, {Agent: true, Name: "s1", Report: has}, {Agent: true, Name: "s2", Report: other}, {Agent: true, Name: "s3"},
		{Agent: true, Name: "s4", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.4")}, Report: &Report{}}, {Agent: true, Name: "s5", Report: &Report{OwnTickets: true}}}}
	behind, own := nodes.TicketsBehind(fleet, key)
	want := []string{"agent s2 does not have the key of epoch 2 yet", "agent s3 does not have the key of epoch 2 yet", "agent s4 does not have the key of epoch 2 yet",
		"server s6 of service web: no agent of it is connected"}
	if !slices.Equal(behind, want) || !slices.Equal(own, []string{"s5"}) {
		t.Errorf("behind %q, own %q", behind, own)
	}
}
