package beyond

import (
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/event"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

// Clients that want all their connections, a tenth of all, on one server.
const (
	aimServers     = 100
	aimVictim      = 17 // id
	aimConnections = 20_000
	aimPart        = 0.1
	aimBlindEnd    = 400 * second
	aimWatchingEnd = 1000 * second
	aimMeasured    = 100 * second // at the end
	aimGivenUp     = talkRTT      // how long a connection lives that went to another server
)

func aimExperiment() sim.Experiment {
	return sim.Experiment{
		Name: "beyond-adversary-aim", Source: source, Extra: true,
		Title: "clients that aim at one server of a hundred: by address and port, and by forged cookies",
		Method: "20000 connections of web-server durations to 100 servers, a tenth of arrivals from attackers who want them on one server. Blind ones know the Maglev " +
			"table (4093 slots) and its hash. Watching ones see which server answers, and use an address and port that led to the victim again. Theory: blind 12.1 " +
			"with a known hash; watching 1.11 by turns, and 4.4 by a keyed hash. Of 14-bit cookies with 100 ids in use a guess is valid with 0.5*100/8192, and the " +
			"victim's with 0.5/8192; a cookie of another flow with twice that.",
		Claims: []sim.Claim{
			{ID: "blind-unkeyed", What: "victim's load over the others', blind attackers, Maglev by a hash without a key", Unit: "x", Low: 11.6, High: 12.6},
			{ID: "blind-keyed", What: "the same by our hash", Unit: "x", Low: 0.92, High: 1.08},
			{ID: "blind-rr", What: "the same by round robin and cookies", Unit: "x", Low: 0.93, High: 1.07},
			{ID: "blind-p2c", What: "the same by two choices and cookies", Unit: "x", Low: 0.98, High: 1.02},
			{ID: "watching-keyed", What: "victim's load over the others', watching attackers, by our hash", Unit: "x", Low: 4, High: 4.75,
				Note: "a keyed hash hides who the server will be, not who it was: what was found out once is true until the table changes"},
			{ID: "watching-rr", What: "the same by round robin and cookies", Unit: "x", Low: 1.02, High: 1.2},
			{ID: "watching-p2c", What: "the same by two choices and cookies", Unit: "x", Low: 0.98, High: 1.03},
			{ID: "guess-any", What: "guessed cookies that name some server", Unit: "%", Low: 0.59, High: 0.63},
			{ID: "guess-victim", What: "guessed cookies that name the victim", Unit: "%", Low: 0.005, High: 0.0072},
			{ID: "replay-any", What: "the victim's cookies of other flows that name some server", Unit: "%", Low: 1.19, High: 1.25},
			{ID: "replay-victim", What: "the victim's cookies of other flows that name the victim", Unit: "%", Low: 0.0105, High: 0.014},
			{ID: "turned-victim", What: "a flow's own cookie, XOR its server's id, XOR the victim's, that names the victim", Unit: "%", Low: 100, High: 100,
				Note: "an XOR hides what it carries and does not sign it. That gains packets to a server that has no such connection and answers with RST; a SYN goes where " +
					"dispatch says, whatever it carries"},
		},
		Figures: []sim.Figure{{Title: "clients that see which server answers aim at one", X: "time, s", Y: "victim's connections over the mean of the others"}},
		Run:     runAim,
	}
}

// chooser is a way in which connections find their server.
type chooser func(client netip.AddrPort, flow uint64, loads []int32) (server uint32)

// aim is such a way, with clients who aim.
type aim struct {
	name     string
	server   chooser
	watching bool // attackers see who answers
}

// aimCases are all of them. An id is the number of its server and one more.
func aimCases(seed uint64) []aim {
	turns := func() chooser {
		t := &dispatch.Turns{Round: dispatch.Everybody(aimServers)}
		return func(_ netip.AddrPort, flow uint64, loads []int32) uint32 { return t.Choose(flow, loads) }
	}
	round, _ := dispatch.Rounds(everyServer(aimServers, nil))
	two := &dispatch.TwoChoices{Round: round, Numbers: random.Keyed(seed, "choices")}
	byTwo := func(_ netip.AddrPort, flow uint64, loads []int32) uint32 { return two.Choose(flow, loads) }
	placement := newKeys(seed).placement
	return []aim{
		{"blind-unkeyed", byHash(cookie.Key{}), false}, {"blind-keyed", byHash(placement), false}, {"blind-rr", turns(), false}, {"blind-p2c", byTwo, false},
		{"watching-keyed", byHash(placement), true}, {"watching-rr", turns(), true}, {"watching-p2c", byTwo, true},
	}
}

// byHash takes the owner of a client's slot.
func byHash(key cookie.Key) chooser {
	table := maglev.Table(model.DefaultSlots, everyServer(aimServers, nil))
	return func(client netip.AddrPort, _ uint64, _ []int32) uint32 {
		return uint32(table[aimSlot(key, client)]) - 1
	}
}

// aimSlot is the slot of a client in a table of the default size.
func aimSlot(key cookie.Key, client netip.AddrPort) uint32 {
	return cookie.Slot(cookie.FlowHash(key, client, talkPort), model.DefaultSlots)
}

func runAim(run *sim.Run) {
	cases := aimCases(run.Seed)
	for i, c := range cases {
		load := c.play(run, i, len(cases))
		run.Value(c.name, load)
	}
	reportForged(run, newKeys(run.Seed).cookie)
}

// aimed is a world with attackers.
type aimed struct {
	aim
	world    *flows.World
	clientOf random.Key     // of others' flows
	tries    *random.Stream // addresses and ports of attackers
	admitted uint32         // server of the attackers' connection that is about to begin
	attacks  bool           // one is
	count    uint64         // connections that attackers tried

	useful []netip.AddrPort // addresses that led to the victim and are not in use
	used   []netip.AddrPort // in use, by the event of its end
	spare  []uint32
	ends   *event.Queue
	table  []uint16 // as everybody can compute it
}

// Choose implements flows.Chooser.
func (a *aimed) Choose(flow uint64, loads []int32) uint32 {
	if a.attacks {
		return a.admitted
	}
	return a.server(clientFrom(a.clientOf.At(flow)), flow, loads)
}

// play runs one world and returns the victim's load. before of all cases were run already.
func (c aim) play(run *sim.Run, before, all int) float64 {
	lives, _ := webDurations()
	rate := aimConnections / lives.Mean()
	tries, gaps := random.New(run.Seed, "tries"), random.New(run.Seed, "attacks")
	lifeOf, sampler := random.Keyed(run.Seed, "attackers' durations"), random.NewSampler(lives.Scaled(float64(second)))
	a := &aimed{aim: c, clientOf: random.Keyed(run.Seed, "clients"), tries: &tries, ends: event.New(millisecond),
		table: maglev.Table(model.DefaultSlots, everyServer(aimServers, nil))}
	a.world = flows.New(flows.Config{Seed: run.Seed, Servers: aimServers, Durations: lives, Rate: rate * (1 - aimPart), Chooser: a})
	a.world.Fill()
	end, sum, next := aimBlindEnd, 0.0, int64(0)
	if c.watching {
		end = aimWatchingEnd
	}
	for now := second; now <= end; now += second {
		for ; next < now; next += 1 + int64(gaps.Exp(float64(second)/(rate*aimPart))) {
			a.world.RunUntil(next)
			a.attack(next, int64(sampler.At(lifeOf.Float64At(a.count))))
		}
		a.world.RunUntil(now)
		load := overOthers(a.world.Loads(), aimVictim-1)
		if now > end-aimMeasured {
			sum += load / float64(aimMeasured/second)
		}
		if c.watching && now%(50*second) == 0 {
			run.Point(c.name[len("watching-"):], float64(now/second), load)
		}
		events := int64(2 * rate * float64(end/second))
		run.Progress(events*int64(before)+events*(now/second)/(end/second), events*int64(all))
	}
	return sum
}

// attack is one connection that an attacker tries. It would live for so long.
func (a *aimed) attack(now, life int64) {
	for {
		_, place, ok := a.ends.PopBefore(now)
		if !ok {
			break
		}
		a.useful, a.spare = append(a.useful, a.used[place]), append(a.spare, place)
	}
	client := a.client()
	a.count++
	a.admitted = a.server(client, ^a.count, a.world.Loads())
	a.attacks = true
	defer func() { a.attacks = false }()
	if a.watching && a.admitted != aimVictim-1 {
		a.world.Admit(aimGivenUp)
		return
	}
	a.world.Admit(life)
	if a.watching {
		a.use(client, now+life)
	}
}

// use keeps an address from others until its connection ends.
func (a *aimed) use(client netip.AddrPort, end int64) {
	if len(a.spare) == 0 {
		a.spare, a.used = append(a.spare, uint32(len(a.used))), append(a.used, netip.AddrPort{})
	}
	place := a.spare[len(a.spare)-1]
	a.spare, a.used[place] = a.spare[:len(a.spare)-1], client
	a.ends.Push(end, place)
}

// client is the address and port that an attacker tries next: one that was good before, or else a fresh one; the blind choose theirs so that the
// victim owns its slot, by all that they know.
func (a *aimed) client() netip.AddrPort {
	if last := len(a.useful) - 1; last >= 0 {
		client := a.useful[last]
		a.useful = a.useful[:last]
		return client
	}
	for {
		client := clientFrom(a.tries.Uint64())
		if a.watching || a.table[aimSlot(cookie.Key{}, client)] == aimVictim {
			return client
		}
	}
}

// overOthers is a server's load over the mean of the others.
func overOthers(loads []int32, server int) float64 {
	others := 0.0
	for i, load := range loads {
		if i != server {
			others += float64(load)
		}
	}
	return float64(loads[server]) * float64(len(loads)-1) / others
}
