package console

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// seriesLength is how many looks the charts go back.
const seriesLength = 900

// message is what a page is told: all there is, or what has changed since the one before.
type message struct {
	Seq      uint64          `json:"seq"`
	Whole    bool            `json:"whole,omitempty"`
	Head     json.RawMessage `json:"head,omitempty"`
	Problems json.RawMessage `json:"problems,omitempty"`
	Services json.RawMessage `json:"services,omitempty"`
	Nodes    json.RawMessage `json:"nodes,omitempty"`
	Changes  json.RawMessage `json:"changes,omitempty"`
	Servers  []serverRow     `json:"servers,omitempty"`
	Gone     []int           `json:"gone,omitempty"`   // numbers of rows
	Counts   []float64       `json:"counts,omitempty"` // four for each server: number, open connections (-1: unknown), new ones a second, weight
	New      []float64       `json:"new"`              // connections a second, by service
	Point    []float64       `json:"point,omitempty"`  // the newest of Series
	Series   [][]float64     `json:"series,omitempty"` // time, new connections, open ones (-1: unknown), and packets a second by rung
}

type head struct {
	Role      string   `json:"role"`
	Name      string   `json:"name"`
	Version   string   `json:"version"`
	Revision  uint64   `json:"revision"`
	Level     string   `json:"level"`
	Headline  string   `json:"headline"`
	Rungs     []string `json:"rungs"` // empty: this daemon sees no packets
	NoChanges string   `json:"noChanges"`
}

type serviceRow struct {
	Name     string `json:"name"`
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
	Dispatch string `json:"dispatch"`
	Affinity string `json:"affinity"`
	Forward  string `json:"forward"`
	Return   string `json:"return"`
	Check    string `json:"check"`
}

// serverRow is what changes rarely of a server.
type serverRow struct {
	I        int    `json:"i"` // number of the row, as long as this daemon runs
	Service  string `json:"service"`
	Name     string `json:"name"`
	ID       uint32 `json:"id"`
	Address  string `json:"address"`
	State    string `json:"state"` // active, draining, off, removed
	Health   string `json:"health"`
	Detail   string `json:"detail,omitempty"`
	Agent    string `json:"agent,omitempty"`
	Exact    bool   `json:"exact,omitempty"`    // open connections were counted, not estimated
	Deadline int64  `json:"deadline,omitempty"` // of a drain
}

type nodeRow struct {
	Role     string   `json:"role"`
	Name     string   `json:"name"`
	Address  string   `json:"address"`
	Version  string   `json:"version"`
	Ready    string   `json:"ready"`
	Tier     string   `json:"tier,omitempty"`
	State    string   `json:"state,omitempty"`
	Health   string   `json:"health,omitempty"`
	Revision uint64   `json:"revision,omitempty"`
	Since    int64    `json:"since,omitempty"` // connected; of lost ones when they were seen last
	Services int      `json:"services,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

type changeRow struct {
	Time     int64    `json:"time"`
	By       string   `json:"by"`
	From     string   `json:"from,omitempty"` // address
	Comment  string   `json:"comment,omitempty"`
	Revision uint64   `json:"revision,omitempty"` // that it made; 0: not known
	Back     uint64   `json:"back,omitempty"`     // the revision before it, to which the fleet can go back; 0: none is kept
	Changes  []string `json:"changes"`
}

type serverKey struct {
	service string
	id      uint32
}

// encoder turns views into messages.
type encoder struct {
	seq       uint64
	numbers   map[serverKey]int
	next      int
	rows      map[int]serverRow
	counts    map[int][3]float64
	sections  map[string][]byte
	since     map[string]int64 // problems
	byServer  rates[serverKey]
	byService rates[string]
	byVerdict rates[string]
	series    [][]float64
}

func newEncoder() *encoder {
	return &encoder{numbers: map[serverKey]int{}, rows: map[int]serverRow{}, counts: map[int][3]float64{}, sections: map[string][]byte{}, since: map[string]int64{}}
}

// look is one look at a view, as messages of both kinds.
type look struct {
	seq          uint64
	whole, delta func() []byte // made when they are asked for first
}

// take returns a look at a view.
func (e *encoder) take(at time.Time, v *View) *look {
	e.seq++
	delta := message{Seq: e.seq}
	open := e.servers(at, v, &delta)
	newByService := e.byService.add(at, dispatched(v))
	point := []float64{float64(at.UnixMilli()), 0, open}
	for i := range v.Services {
		rate := rounded(newByService[v.Services[i].Name])
		delta.New, point[1] = append(delta.New, rate), point[1]+rate
	}
	point = append(point, e.packets(at, v)...)
	e.series = append(e.series[max(0, len(e.series)+1-seriesLength):len(e.series):len(e.series)], point)
	delta.Point = point
	whole := message{Seq: e.seq, Whole: true, New: delta.New, Series: e.series, Servers: slices.Collect(maps.Values(e.rows))}
	slices.SortFunc(whole.Servers, func(a, b serverRow) int { return a.I - b.I })
	for _, row := range whole.Servers {
		count := e.counts[row.I]
		whole.Counts = append(whole.Counts, float64(row.I), count[0], count[1], count[2])
	}
	e.section("head", e.head(at, v, &delta, &whole), &delta.Head, &whole.Head)
	e.section("services", serviceRows(v), &delta.Services, &whole.Services)
	e.section("nodes", nodeRows(v), &delta.Nodes, &whole.Nodes)
	e.section("changes", changeRows(v), &delta.Changes, &whole.Changes)
	return &look{e.seq, encoded(whole), encoded(delta)}
}

// encoded is an event of a stream, which people read.
func encoded(m message) func() []byte {
	return sync.OnceValue(func() []byte { return []byte("data: " + model.ForPeople(string(marshal(m))) + "\n\n") })
}

// marshal writes what can be written: our own types.
func marshal(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return text
}

// section puts a part into messages: into the delta if it has changed.
func (e *encoder) section(name string, value any, delta, whole *json.RawMessage) {
	text := marshal(value)
	if !bytes.Equal(e.sections[name], text) {
		e.sections[name], *delta = text, text
	}
	*whole = text
}

// head also sets the problems, which the headline goes by.
func (e *encoder) head(at time.Time, v *View, delta, whole *message) head {
	problems := problemsOf(v)
	before := e.since
	e.since = map[string]int64{}
	for i := range problems {
		p := &problems[i]
		p.Since = at.UnixMilli()
		if since, known := before[p.Text]; known {
			p.Since = since
		}
		e.since[p.Text] = p.Since
	}
	e.section("problems", slices.Concat([]problem{}, problems), &delta.Problems, &whole.Problems)
	h := head{Role: v.Role, Name: v.Name, Version: v.Version, Revision: v.Revision, Rungs: []string{}, NoChanges: v.NoChanges}
	h.Level, h.Headline = headline(v, problems)
	if v.Verdicts != nil {
		h.Rungs = rungs
	}
	return h
}

// servers sets what has changed of servers, and returns how many connections all have; -1: nobody can tell.
func (e *encoder) servers(at time.Time, v *View, delta *message) (open float64) {
	begun := make(map[serverKey]uint64, len(v.Servers))
	for i := range v.Servers {
		begun[keyOf(&v.Servers[i])] = v.Servers[i].Dispatched
	}
	grown := e.byServer.add(at, begun)
	open = -1
	seen := make(map[int]bool, len(v.Servers))
	for i := range v.Servers {
		s := &v.Servers[i]
		key := keyOf(s)
		number, known := e.numbers[key]
		if !known {
			number = e.next
			e.numbers[key], e.next = number, e.next+1
		}
		seen[number] = true
		if row := rowOf(number, s); e.rows[number] != row || !known {
			e.rows[number] = row
			delta.Servers = append(delta.Servers, row)
		}
		count := [3]float64{-1, rounded(grown[key]), float64(s.Weight)}
		if s.Connections != nil {
			count[0] = float64(*s.Connections)
			open = max(open, 0) + count[0]
		}
		if e.counts[number] != count || !known {
			e.counts[number] = count
			delta.Counts = append(delta.Counts, float64(number), count[0], count[1], count[2])
		}
	}
	for key, number := range e.numbers {
		if !seen[number] {
			delta.Gone = append(delta.Gone, number)
			delete(e.numbers, key)
			delete(e.rows, number)
			delete(e.counts, number)
		}
	}
	return open
}

func keyOf(s *Server) serverKey { return serverKey{s.Service, s.Server.Id} }

func rowOf(number int, s *Server) serverRow {
	row := serverRow{I: number, Service: s.Service, Name: s.Server.Name, ID: s.Server.Id, Address: s.Server.Address, State: s.Server.State, Health: s.Health,
		Detail: s.HealthDetail, Agent: s.Agent, Exact: s.ConnectionsExact}
	if row.State == "" {
		row.State = "active"
	}
	if s.Removed {
		row.State = "removed"
	}
	if s.Server.Deadline != nil {
		row.Deadline = s.Server.Deadline.AsTime().UnixMilli()
	}
	return row
}

// packets returns those of a second by rung; nothing where none are seen.
func (e *encoder) packets(at time.Time, v *View) (list []float64) {
	if v.Verdicts == nil {
		return nil
	}
	grown := e.byVerdict.add(at, v.Verdicts)
	list = make([]float64, len(rungs))
	for verdict, rate := range grown {
		if i := slices.Index(rungs, RungOf(verdict)); i >= 0 {
			list[i] += rate
		}
	}
	for i := range list {
		list[i] = rounded(list[i])
	}
	return list
}

func dispatched(v *View) map[string]uint64 {
	counts := make(map[string]uint64, len(v.Services))
	for i := range v.Services {
		counts[v.Services[i].Name] = v.Services[i].Dispatched
	}
	return counts
}

func rounded(rate float64) float64 { return math.Round(10*rate) / 10 }

// where is what clients connect to.
func where(s *Service) string {
	if s.Functions() {
		return s.Where()
	}
	at := make([]string, 0, 1+len(s.MoreVIPs))
	for _, vip := range s.VIPs() {
		at = append(at, net.JoinHostPort(vip.String(), s.PortsText()))
	}
	return strings.Join(at, " ")
}

func serviceRows(v *View) []serviceRow {
	rows := []serviceRow{}
	for i := range v.Services {
		s := &v.Services[i]
		rows = append(rows, serviceRow{Name: s.Name, Address: where(s), Protocol: s.Protocol.String(), Dispatch: s.Dispatch.String(), Affinity: s.Affinity.String(),
			Forward: s.Forward.String(), Return: s.Return.String(), Check: s.Health.Check.String()})
	}
	return rows
}

func nodeRows(v *View) []nodeRow {
	rows := []nodeRow{}
	for _, n := range v.Nodes {
		row := nodeRow{Role: n.Role, Name: n.Name, Address: n.Address, Version: n.Version, Ready: n.Ready, Health: n.Health, Revision: n.Revision,
			Services: len(n.Services), Problems: n.Problems}
		if n.Since != nil {
			row.Since = n.Since.AsTime().UnixMilli()
		}
		if n.Ready == "lost" && n.LastSeen != nil {
			row.Since = n.LastSeen.AsTime().UnixMilli()
		}
		if n.Node != nil {
			row.Tier, row.State = n.Node.Tier, n.Node.State
		}
		rows = append(rows, row)
	}
	return rows
}

// changesShown is how many of the last changes a page lists.
const changesShown = 30

// changeRows are the last changes, the newest first.
func changeRows(v *View) []changeRow {
	rows := []changeRow{}
	for i := len(v.Changes) - 1; i >= max(0, len(v.Changes)-changesShown); i-- {
		c := v.Changes[i]
		row := changeRow{Time: c.Time.AsTime().UnixMilli(), By: by(c), From: c.Address, Comment: c.Comment, Revision: c.Revision, Changes: c.Changes}
		if i > 0 && v.Changes[i-1].Kept {
			row.Back = v.Changes[i-1].Revision
		}
		rows = append(rows, row)
	}
	return rows
}

func by(c *ballastv1.FleetChange) string {
	if c.Role == "" {
		return c.Name
	}
	return strings.Join([]string{c.Name, "(" + c.Role + ")"}, " ")
}
