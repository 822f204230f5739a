package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// RepeatInterval is how often load balancers must say everything they see, besides every change at once. What has not been said for
// ViewLife is not believed any more.
const (
	RepeatInterval = 5 * time.Second
	ViewLife       = 3 * RepeatInterval
)

// Silent is how long nothing comes from a node that says every second that it works, until it is silent.
const Silent = 3 * time.Second

// States of a server, as Status tells them.
const (
	Healthy   = "healthy"
	Unhealthy = "unhealthy"
	Unknown   = "unknown"   // nobody has seen enough yet
	Unchecked = "unchecked" // the service has no checks
)

// Judge decides for one service by what its load balancers see. The zero value knows nothing. It is not safe for concurrent use.
//
// A server that is added is down until a load balancer has found it healthy, or nobody has checked it for a check and ViewLife.
//
// The load balancers that have a say are those that are assigned, are not silent and were heard of within ViewLife; a newly assigned one
// counts from the start, so that the first to speak does not decide alone. A server falls when more than half of them see it
// down. It rises when as many of them see it up as down: those that have seen neither yet speak for what it was. What a silent one saw
// is forgotten: whatever silenced it may have come later.
// When nobody with a say has seen it, it stays what it was for ViewLife, and then nothing is known of it.
type Judge struct {
	views    map[uint16]map[string]view
	heard    map[string]time.Time // last word of a load balancer, about any server
	assigned map[string]time.Time // since when
	silent   map[string]bool      // load balancers; nobody changes it
	verdicts map[uint16]verdict
	set      map[uint16]bool // who gets new connections and is healthy; nil: nobody
	setSince time.Time
	last     map[uint16]bool                // all_down keep: the last set that stood
	restored map[uint16]bool                // by Restore, until the first Down
	begun    bool                           // Down has judged by checks: a server without a verdict is one that was added
	findings map[uint16]map[string]*finding // of agents
	seen     seen
}

// View is what a load balancer sees of a server.
type View struct {
	Healthy    bool
	Direct     bool   // the check did not go through the tunnel to the VIP
	Unanswered bool   // the last check through the tunnel: not even a refusal has come back
	Detail     string // what is wrong or worth knowing, also of a healthy server
	// Succeeded is when the last check that succeeded began; zero: none has, or it is not known.
	Succeeded time.Time
}

type view struct {
	View
	at time.Time
}

type verdict struct {
	down      bool      // by checks
	added     bool      // down, because nobody has seen it yet
	since     time.Time // of the state it is in
	known     time.Time // when somebody with a say had last seen the server
	reported  time.Time // when the newest was said of what that went by; zero: it is not known
	lost      string    // why packets are lost, as its agent finds; empty: they are not
	lostSince time.Time
}

// unhealthy reports whether the server should get no new connections.
func (v *verdict) unhealthy() bool { return v.down || v.lost != "" }

// seen is what the last Down went by, for Status.
type seen struct {
	now      time.Time
	unasked  bool // no checks
	voters   []string
	allDown  model.AllDown
	overrule map[uint16]bool // unhealthy, and gets new connections all the same
}

// Report takes what a load balancer sees of a server. What is older than what it said before is ignored.
func (j *Judge) Report(now time.Time, lb string, id uint16, seen View) {
	if j.views == nil {
		j.views, j.heard = map[uint16]map[string]view{}, map[string]time.Time{}
	}
	if now.After(j.heard[lb]) {
		j.heard[lb] = now
	}
	if j.views[id] == nil {
		j.views[id] = map[string]view{}
	}
	if old, ok := j.views[id][lb]; ok && now.Before(old.at) {
		return
	}
	j.views[id][lb] = view{seen, now}
}

// Silence takes which load balancers are silent, for the next Down.
func (j *Judge) Silence(silent map[string]bool) { j.silent = silent }

// Restore begins with what an earlier judge of the service had decided, as another controller takes over: its Down and its Kept.
func (j *Judge) Restore(now time.Time, down, kept []uint16) {
	j.verdicts, j.restored = map[uint16]verdict{}, map[uint16]bool{}
	for _, id := range slices.Concat(down, kept) {
		j.verdicts[id] = verdict{down: true, since: now, known: now}
	}
	for _, id := range down {
		j.restored[id] = true
	}
}

// Kept returns the ids of the servers that are unhealthy and get new connections all the same, ascending, as of the last Down.
func (j *Judge) Kept() []uint16 { return slices.Sorted(maps.Keys(j.seen.overrule)) }

// Down returns the ids of the servers that get no new connections because they are unhealthy, ascending. assigned are the load
// balancers that check the service. Call it after every Told, and when time has passed.
//
// When all servers that might get new connections are unhealthy, all_down decides: keep leaves the last set that stood for longer
// than it takes until a common failure has shown at every server (those of it that are still there; if none is, all), and so does
// withdraw; all leaves all, none leaves none. Servers that fail together fall one after the other: the last of them alone could not carry the load of all.
func (j *Judge) Down(now time.Time, svc *model.Service, assigned []string) (down []uint16) {
	j.forget(now, svc)
	unasked := svc.Health.Check == model.CheckNone
	if unasked && len(j.findings) == 0 {
		*j = Judge{seen: seen{now: now, unasked: true}}
		return nil
	}
	if unasked {
		assigned = nil
	}
	j.seen = seen{now: now, unasked: unasked, voters: j.voters(now, assigned), allDown: svc.Health.AllDown, overrule: map[uint16]bool{}}
	verdicts := make(map[uint16]verdict, len(svc.Servers))
	candidates, healthy := map[uint16]bool{}, map[uint16]bool{}
	for i := range svc.Servers {
		server := &svc.Servers[i]
		if _, known := j.verdicts[server.ID]; j.begun && !known && !unasked {
			j.verdicts[server.ID] = verdict{down: true, added: true, since: now, known: now.Add(time.Duration(svc.Health.Interval + svc.Health.Timeout))}
		}
		v := j.judge(now, server.ID)
		if v.lost = j.lost(server.ID); v.lost == "" {
			v.lostSince = time.Time{}
		} else if v.lostSince.IsZero() {
			v.lostSince = now
		}
		verdicts[server.ID] = v
		if server.TakesNew() {
			candidates[server.ID] = true
			healthy[server.ID] = !v.unhealthy()
		}
	}
	j.verdicts, j.begun = verdicts, !unasked
	maps.DeleteFunc(healthy, func(_ uint16, ok bool) bool { return !ok })
	kept := j.keep(now, candidates, healthy, &svc.Health)
	for id, v := range verdicts {
		if v.unhealthy() && kept[id] {
			j.seen.overrule[id] = true
		} else if v.unhealthy() {
			down = append(down, id)
		}
	}
	slices.Sort(down)
	return down
}

// keep returns who gets new connections.
func (j *Judge) keep(now time.Time, candidates, healthy map[uint16]bool, h *model.Health) map[uint16]bool {
	if j.restored != nil && j.last == nil {
		j.last = without(candidates, func(id uint16) bool { return j.restored[id] })
	}
	j.restored = nil
	if !maps.Equal(healthy, j.set) {
		if len(j.set) > 0 && (j.last == nil || now.Sub(j.setSince) > fallSpread(h)) {
			j.last = j.set
		}
		j.set, j.setSince = healthy, now
	}
	if len(healthy) > 0 {
		return healthy
	}
	switch h.AllDown {
	case model.AllDownNone:
		return nil
	case model.AllDownKeep, model.AllDownWithdraw:
		if kept := without(candidates, func(id uint16) bool { return !j.last[id] }); len(kept) > 0 {
			return kept
		}
	}
	return candidates
}

// fallSpread is the longest time from the first fall to the last of servers that begin to fail at one moment: checks are anywhere in
// their interval, come a tenth early or late, and some fail at once while others time out.
func fallSpread(h *model.Health) time.Duration {
	return time.Duration(h.Interval)*time.Duration(5+h.Fall)/5 + time.Duration(h.Timeout)
}

func without(set map[uint16]bool, drop func(uint16) bool) map[uint16]bool {
	left := maps.Clone(set)
	maps.DeleteFunc(left, func(id uint16, _ bool) bool { return drop(id) })
	return left
}

// voters are the load balancers that have a say, in order.
func (j *Judge) voters(now time.Time, assigned []string) (voters []string) {
	since := make(map[string]time.Time, len(assigned))
	for _, lb := range assigned {
		since[lb] = now
		if at, ok := j.assigned[lb]; ok {
			since[lb] = at
		}
	}
	j.assigned = since
	for _, lb := range slices.Sorted(maps.Keys(since)) {
		if j.silent[lb] {
			for _, views := range j.views {
				delete(views, lb)
			}
			continue
		}
		if heard, ok := j.heard[lb]; now.Sub(since[lb]) < ViewLife || ok && now.Sub(heard) < ViewLife {
			voters = append(voters, lb)
		}
	}
	return voters
}

func (j *Judge) judge(now time.Time, id uint16) verdict {
	good, bad, reported := 0, 0, time.Time{}
	for _, lb := range j.seen.voters {
		if at := j.views[id][lb].at; at.After(reported) {
			reported = at
		}
		if v, ok := j.views[id][lb]; ok && v.Healthy {
			good++
		} else if ok {
			bad++
		}
	}
	v := j.verdicts[id]
	if good+bad == 0 {
		if j.seen.unasked || now.Sub(v.known) >= ViewLife {
			return verdict{lostSince: v.lostSince}
		}
		return v
	}
	down := 2*bad > len(j.seen.voters)
	if v.down {
		down = bad > good
	}
	if down != v.down || v.since.IsZero() {
		v.down, v.since = down, now
	}
	v.known, v.reported, v.added = now, reported, false
	return v
}

// forget drops views that nobody stands by any more, and those of servers that are gone.
func (j *Judge) forget(now time.Time, svc *model.Service) {
	here := make(map[uint16]bool, len(svc.Servers))
	for i := range svc.Servers {
		here[svc.Servers[i].ID] = true
	}
	maps.DeleteFunc(j.views, func(id uint16, views map[string]view) bool {
		maps.DeleteFunc(views, func(_ string, v view) bool { return now.Sub(v.at) >= ViewLife })
		return !here[id] || len(views) == 0
	})
	maps.DeleteFunc(j.heard, func(_ string, at time.Time) bool { return now.Sub(at) >= ViewLife })
	j.forgetFindings(now, here)
}

// DownSince is when the server was judged unhealthy, whether or not all_down leaves it new connections; zero: it is not.
func (j *Judge) DownSince(id uint16) time.Time {
	v := j.verdicts[id]
	switch {
	case v.down && (v.lost == "" || v.since.Before(v.lostSince)):
		return v.since
	case v.lost != "":
		return v.lostSince
	}
	return time.Time{}
}

// Reported is when a load balancer with a say last reported how it sees the server; zero: nobody has, as far as is known here.
func (j *Judge) Reported(id uint16) time.Time { return j.verdicts[id].reported }

// Status tells the state of a server as of the last Down, and for people why.
func (j *Judge) Status(id uint16) (state, detail string) {
	v := j.verdicts[id]
	if j.seen.unasked && v.lost == "" {
		return Unchecked, ""
	}
	detail = j.complaints(id, v.down)
	if v.added {
		detail = "added, and not checked yet"
	}
	if v.lost != "" && detail != "" {
		detail = v.lost + "; " + detail
	} else if v.lost != "" {
		detail = v.lost
	}
	switch {
	case v.unhealthy():
		state = Unhealthy
		if j.seen.overrule[id] {
			detail += fmt.Sprintf("; gets new connections all the same: all servers are unhealthy (all_down: %s)", j.seen.allDown)
		}
	case v.known.IsZero():
		state = Unknown
		if detail == "" {
			detail = "no load balancer has seen it answer or fail yet"
		}
	default:
		state = Healthy
	}
	return state, detail
}

// Views returns, by load balancer, what those with a say see of a server, as of the last Down.
func (j *Judge) Views(id uint16) map[string]View {
	views := map[string]View{}
	for _, lb := range j.seen.voters {
		if v, ok := j.views[id][lb]; ok {
			views[lb] = v.View
		}
	}
	return views
}

// complaints groups the load balancers by what they say is wrong. Who sees a server otherwise than it was judged is named as such: no text contradicts the state
// that it is read with.
func (j *Judge) complaints(id uint16, down bool) string {
	type kind struct {
		differs bool
		detail  string
	}
	by := map[kind][]string{}
	for _, lb := range j.seen.voters {
		if v, ok := j.views[id][lb]; ok && (v.Detail != "" || v.Healthy == down) {
			one := kind{v.Healthy == down, v.Detail}
			by[one] = append(by[one], lb)
		}
	}
	var agree, differ []string
	for one, names := range by {
		switch at := strings.Join(names, ", "); {
		case !one.differs:
			agree = append(agree, fmt.Sprintf("%s (%s)", one.detail, at))
		case one.detail == "":
			differ = append(differ, "not for "+at)
		default:
			differ = append(differ, fmt.Sprintf("not for %s: %s", at, one.detail))
		}
	}
	slices.Sort(agree)
	slices.Sort(differ)
	return strings.Join(append(agree, differ...), "; ")
}
