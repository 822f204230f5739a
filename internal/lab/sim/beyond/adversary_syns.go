package beyond

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/model"
)

// A flood of SYNs and a rolling update at the same time.
const (
	synsConnections = 20_000
	synsFrom        = 180 * second // longer than any life since the local tables were full
	synsTo          = synsFrom + 60*second
	updatePeriod    = 2 * second  // until the next server is updated
	updateDown      = 10 * second // how long one is away
)

// synsRates are SYNs a second for each connection that there is.
var synsRates = []float64{0, 0.03, 0.1, 0.3, 1}

// synsOurs are those of our tables; the last one is one that makes entries at the SYN.
var synsOurs = []float64{0, 0.1, 1, 1}

func synsExperiment(connections int) sim.Experiment {
	return sim.Experiment{
		Name: "beyond-adversary-syns", Source: source, Seeds: 5, Extra: true,
		Title: "a flood of SYNs during a rolling update: who remembers whom, and what breaks",
		Method: "20000 connections of web-server durations to 100 servers, of which one after another, every 2 s, is drained and away for 10 s. For a minute, spoofed " +
			"SYNs: up to 1 a second per connection. Counted: connections that live when the flood begins. The local tables have twice as many places as " +
			"connections, and fall back to Maglev: one an exact LRU, one Linux's LRU map. Ours has 1.29 entries per connection. That cookies break nothing, and " +
			"that SYNs take no entry, is by construction. Bands: Linux's map from the map itself (6.18); all else from a prototype in another language.",
		Claims: []sim.Claim{
			{ID: "hash", What: "broken by plain hash, with any flood", Unit: "%", Low: 25, High: 29.5},
			{ID: "lru-lost-0", What: "pushed out of an exact LRU table without a flood", Unit: "%", Low: 0, High: 0.05},
			{ID: "lru-lost-0.1", What: "pushed out of it by 0.1 SYN/s a connection", Unit: "%", Low: 21.5, High: 25.5},
			{ID: "lru-broken-0.1", What: "broken then", Unit: "%", Low: 5, High: 6.6},
			{ID: "lru-lost-1", What: "pushed out of it by 1 SYN/s a connection", Unit: "%", Low: 95, High: 98},
			{ID: "lru-broken-1", What: "broken then", Unit: "%", Low: 25, High: 29.5},
			{ID: "kernel-lost-0", What: "pushed out of Linux's LRU map without a flood", Unit: "%", Low: 39, High: 42.5,
				Note: "once it has been full, it evicts 128 entries at a time that have not been read: a connection without a second packet when 128 others have begun on its " +
					"CPU is gone. With half the connections, 25 %"},
			{ID: "kernel-broken-0", What: "broken then", Unit: "%", Low: 10, High: 12.5},
			{ID: "kernel-lost-1", What: "pushed out of it by 1 SYN/s a connection", Unit: "%", Low: 46, High: 50},
			{ID: "kernel-broken-1", What: "broken then", Unit: "%", Low: 11.5, High: 14.5},
			{ID: "cookie-broken-1", What: "broken with cookies, 1 SYN/s a connection", Unit: "%", Low: 0, High: 0,
				Note: "by construction: the cookie carries the server, and no state is needed to find it. Left out: cookies that middleboxes strip, keys that rotate, ids given anew"},
			{ID: "unseen-0", What: "connections without an entry in our table, without a flood", Unit: "%", Low: 0, High: 0.6},
			{ID: "unseen-1", What: "the same with 1 SYN/s a connection", Unit: "%", Low: 0, High: 0.6,
				Note: "by construction: a SYN touches no state but the turn of the round robin. Left out: what SYNs cost CPUs, links and servers' backlogs. ACKs with guessed " +
					"cookies do take entries: beyond-adversary-idle"},
			{ID: "unseen-at-syn-1", What: "the same if entries were made at the SYN", Unit: "%", Low: 24, High: 29,
				Note: "the paper makes them there (III-B) and says that fast insertions mitigate floods. Here, unlike there, who finds no place asks again with each packet"},
		},
		Figures: []sim.Figure{{Title: "a flood of SYNs during a rolling update", X: "SYNs a second for each connection", Y: "% of connections", LogX: true}},
		Run:     func(run *sim.Run) { runSyns(run, connections) },
	}
}

// updates is a rolling update of all servers: who is away.
type updates struct {
	talks *talks
	ours  []*carried
}

// server i leaves at i*updatePeriod after from, whatever the number of servers.
func (u *updates) isAway(since int64) func(id uint16) bool {
	return func(id uint16) bool {
		round := int64(talkServers) * updatePeriod
		at := (since - int64(id-1)*updatePeriod) % round
		return since >= int64(id-1)*updatePeriod && at < updateDown
	}
}

// step runs on by a second and then has the next server leave and the one that is ready come back, if it is time.
func (u *updates) step(now, since int64) {
	u.talks.runUntil(now)
	if since < 0 || since%updatePeriod != 0 {
		return
	}
	away := u.isAway(since)
	u.talks.rebuild(away)
	for _, c := range u.ours {
		c.choose(away)
	}
}

func runSyns(run *sim.Run, connections int) {
	ours, talks := synsTables(run.Seed, connections)
	talks.judgeFrom, talks.judgeTo = synsFrom, synsFrom
	update, unseen := updates{talks, ours}, make([]float64, len(ours))
	for now := second; now <= synsTo; now += second {
		update.step(now, now-synsFrom)
		for i, c := range ours {
			if now > synsFrom {
				unseen[i] += 100 * c.unseen(now) / float64((synsTo-synsFrom)/second)
			}
		}
		run.Progress(int64(talks.flow)*int64(len(talks.hearers)), int64(talks.flow)*int64(len(talks.hearers))*synsTo/now)
	}
	talks.close()
	reportSyns(run, talks.tallies, unseen)
}

// synsTables returns the world with all load balancers: plain hash, an exact LRU and Linux's LRU map for each rate, and ours.
func synsTables(seed uint64, connections int) (ours []*carried, t *talks) {
	attack := func(rate float64) *flood { return newFlood(seed, rate*float64(connections), synsFrom, synsTo) }
	t = newTalks(seed, connections, maglev.Table(model.DefaultSlots, everyServer(talkServers, nil)), func(t *talks) []hearer {
		hearers := []hearer{&hashed{talks: t}}
		places := 2 * connections
		for _, rate := range synsRates {
			hearers = append(hearers, newLocal(t, newExactLRU(places), places, attack(rate)), newLocal(t, newKernelLRU(places), places, attack(rate)))
		}
		for _, rate := range synsOurs {
			ours = append(ours, newCarried(t, uint32(connections*129/100), attack(rate)))
			hearers = append(hearers, ours[len(ours)-1])
		}
		ours[len(ours)-1].atSYN = true
		return hearers
	})
	return ours, t
}

// reportSyns reports what became of the connections; tallies are in the order of synsTables.
func reportSyns(run *sim.Run, tallies []tally, unseen []float64) {
	hash := tallies[0]
	run.Share("hash", hash.wrong, hash.all)
	for i, rate := range synsRates {
		lru, kernel := tallies[1+2*i], tallies[2+2*i]
		if rate > 0 {
			run.Point("broken by plain hash", rate, percent(hash.wrong, hash.all))
			run.Point("pushed out of LRU", rate, percent(lru.lost, lru.all))
			run.Point("broken, LRU", rate, percent(lru.wrong, lru.all))
			run.Point("pushed out of Linux's LRU map", rate, percent(kernel.lost, kernel.all))
			run.Point("broken, Linux's LRU map", rate, percent(kernel.wrong, kernel.all))
		}
		reported := fmt.Sprint(rate)
		if rate == 0 || rate == 0.1 || rate == 1 {
			run.Share("lru-lost-"+reported, lru.lost, lru.all)
		}
		if rate == 0.1 || rate == 1 {
			run.Share("lru-broken-"+reported, lru.wrong, lru.all)
		}
		if rate == 0 || rate == 1 {
			run.Share("kernel-lost-"+reported, kernel.lost, kernel.all)
			run.Share("kernel-broken-"+reported, kernel.wrong, kernel.all)
		}
	}
	for i, rate := range synsOurs[:3] {
		t := tallies[len(tallies)-len(synsOurs)+i]
		if rate > 0 {
			run.Point("broken, cookies", rate, percent(t.wrong, t.all))
			run.Point("without an entry, ours", rate, unseen[i])
		}
		if rate == 1 {
			run.Share("cookie-broken-1", t.wrong, t.all)
		}
	}
	run.Value("unseen-0", unseen[0])
	run.Value("unseen-1", unseen[2])
	run.Value("unseen-at-syn-1", unseen[3])
}

func percent(part, of int64) float64 { return 100 * float64(part) / float64(of) }
