package beyond

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/model"
)

// Bots that finish their handshakes, or guess cookies, fill the connection table. All sizes are a 256th of those of a table of a million entries.
const (
	idleConnections = 3175
	idleEntries     = 4096 // 1.29 for each connection
	idleFrom        = 60 * second
	idleTo          = 460 * second // longer than entries are kept
	idleEnd         = idleTo + idleTimeout + 30*second
	idleSeen        = 0.01 // all is well again when no more lack an entry
)

// idleRates are bots' connections a second for each 1000 entries, by kind of bots.
var idleRates = map[string][]float64{"silent": {0, 10, 30, maxIdleRate}, "idle": {1, 3, 10, 30, maxIdleRate}, "guessing": {10, 30, maxIdleRate}}

const maxIdleRate = 100

func idleExperiment() sim.Experiment {
	return sim.Experiment{
		Name: "beyond-adversary-idle", Source: source, Extra: true,
		Title: "bots finish handshakes and keep still, or guess cookies: a connection table that is full",
		Method: "A table of 4096 entries in partitions of 63 for 3175 connections of web-server durations. For 400 s bots open connections. Silent ones say nothing " +
			"after the handshake: their entries go after 10 s. Idle ones send one packet more: their entries stay for idle_timeout, 5 minutes. Guessing ones send " +
			"spoofed ACKs with random cookies, of which 0.5*100/128 = 39 % are valid (7 bits for 100 servers, one of two keys). Meanwhile a server is drained every " +
			"2 s and back 10 s later. Unseen: connections of others without an entry, in the last minute. That none breaks is by construction: the cookie carries " +
			"the server. Bands: from a prototype in another language.",
		Claims: []sim.Claim{
			{ID: "broken", What: "connections that break, all attacks together", Unit: "%", Low: 0, High: 0,
				Note: "by construction: the cookie carries the server, so a full table takes nobody's. Left out: cookies that middleboxes strip, keys that rotate, ids given anew, and " +
					"what bots cost servers' CPUs and links"},
			{ID: "unseen-0", What: "unseen without an attack", Unit: "%", Low: 0, High: 0.6},
			{ID: "unseen-silent-10", What: "unseen, 10 silent bots a second for 1000 entries", Unit: "%", Low: 0.8, High: 1.9},
			{ID: "unseen-silent-100", What: "unseen, 100 silent bots", Unit: "%", Low: 11, High: 16},
			{ID: "unseen-idle-1", What: "unseen, 1 idle bot", Unit: "%", Low: 4.8, High: 7},
			{ID: "unseen-idle-10", What: "unseen, 10 idle bots", Unit: "%", Low: 14, High: 20},
			{ID: "unseen-idle-100", What: "unseen, 100 idle bots", Unit: "%", Low: 47, High: 59},
			{ID: "peak-idle-100", What: "the most at any moment", Unit: "%", Low: 76, High: 88,
				Note: "just before the first entries of bots have been silent for idle_timeout"},
			{ID: "back-silent-100", What: "until 99 % are seen again, after 100 silent bots a second", Unit: "s", Low: 12, High: 20},
			{ID: "guessed", What: "ACKs with guessed cookies that take an entry if there is one", Unit: "%", Low: 38.5, High: 39.6},
			{ID: "unseen-guessing-100", What: "unseen, 100 ACKs with guessed cookies", Unit: "%", Low: 5.6, High: 7.9,
				Note: "a flood of SYNs takes no entry, a flood of ACKs does: spoofed ones, too"},
			{ID: "back-guessing-100", What: "until 99 % are seen again, after them", Unit: "s", Low: 9, High: 16},
			{ID: "back-idle-100", What: "until 99 % are seen again, after 100 idle bots a second", Unit: "s", Low: 275, High: 310},
		},
		Figures: []sim.Figure{
			{Name: "rate", Title: "who has no entry in the last minute of an attack", X: "bots a second for each 1000 entries", Y: "% of connections", LogX: true},
			{Name: "time", Title: "100 bots a second for each 1000 entries, from 60 s to 460 s", X: "time, s", Y: "% of connections without an entry"},
		},
		Run: runIdle,
	}
}

// idleCase is one attack on one table.
type idleCase struct {
	kind   string
	rate   float64
	table  *carried
	unseen float64 // %, in the last minute of the attack
	peak   float64 // %, at the worst moment
	back   int64   // ns after it, when all was well again; 0: it never was
}

func runIdle(run *sim.Run) {
	cases, talks := idleCases(run.Seed)
	update := updates{talks: talks}
	for _, c := range cases {
		update.ours = append(update.ours, c.table)
	}
	for now := second; now <= idleEnd; now += second {
		update.step(now, now)
		for _, c := range cases {
			c.look(run, now)
		}
		run.Progress(int64(talks.flow)*int64(len(cases)), int64(talks.flow)*int64(len(cases))*idleEnd/now)
	}
	talks.close()
	var all tally
	for i, c := range cases {
		all.all += talks.tallies[i].all
		all.wrong += talks.tallies[i].wrong
		if c.rate > 0 {
			run.Point("rate/"+c.kind+" bots", c.rate, c.unseen)
		}
		c.tell(run)
	}
	run.Share("broken", all.wrong, all.all)
}

func idleCases(seed uint64) (cases []*idleCase, t *talks) {
	t = newTalks(seed, idleConnections, maglev.Table(model.DefaultSlots, everyServer(talkServers, nil)), func(t *talks) (hearers []hearer) {
		for _, kind := range []string{"silent", "idle", "guessing"} {
			for _, rate := range idleRates[kind] {
				cases = append(cases, &idleCase{kind: kind, rate: rate, table: newCarried(t, idleEntries, idleAttack(seed, kind, rate*idleEntries/1000))})
				hearers = append(hearers, cases[len(cases)-1].table)
			}
		}
		return hearers
	})
	t.judgeTo = idleEnd
	return cases, t
}

func idleAttack(seed uint64, kind string, perSecond float64) attack {
	if kind == "guessing" {
		return newGuesses(seed, perSecond, idleFrom, idleTo)
	}
	return newBots(seed, perSecond, kind == "idle", idleFrom, idleTo)
}

// look is taken once a second.
func (c *idleCase) look(run *sim.Run, now int64) {
	unseen := c.table.unseen(now)
	c.peak = max(c.peak, 100*unseen)
	if now > idleTo-60*second && now <= idleTo {
		c.unseen += 100 * unseen / 60
	}
	if now > idleTo && unseen <= idleSeen && c.back == 0 {
		c.back = now - idleTo
	}
	if c.rate == maxIdleRate && now%(5*second) == 0 {
		run.Point("time/"+c.kind+" bots", float64(now/second), 100*unseen)
	}
}

// tell tells what is claimed of this attack.
func (c *idleCase) tell(run *sim.Run) {
	switch {
	case c.rate == 0:
		run.Value("unseen-0", c.unseen)
	case c.rate == maxIdleRate:
		run.Value(fmt.Sprintf("unseen-%s-100", c.kind), c.unseen)
		run.Value(fmt.Sprintf("back-%s-100", c.kind), float64(c.back)/float64(second))
		if c.kind == "idle" {
			run.Value("peak-idle-100", c.peak)
		}
		if g, ok := c.table.attack.(*guesses); ok {
			run.Share("guessed", g.valid, g.sent)
		}
	case c.rate == 10 && c.kind != "guessing" || c.rate == 1 && c.kind == "idle":
		run.Value(fmt.Sprintf("unseen-%s-%g", c.kind, c.rate), c.unseen)
	}
}
