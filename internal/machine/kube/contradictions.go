package kube

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/schema"
)

// form is how much of a service is as it is wanted.
type form uint8

const (
	asWanted        form = iota
	earlierSettings      // those that the fleet has, and servers as they are now
	earlier              // what the fleet has
)

// back has an entry go on as the fleet has it, to a form, and reports whether that is news.
func (e *entry) back(to form) bool {
	if e.before == nil || e.form >= to {
		return false
	}
	servers := e.Servers
	if e.Service, e.form = e.before.Clone(), to; to == earlierSettings {
		e.Servers = servers
	}
	return true
}

// SameSettings reports whether two services differ in servers at most.
func SameSettings(x, y *model.Service) bool {
	a, b := *x, *y
	a.ApplyDefaults()
	b.ApplyDefaults()
	return !slices.ContainsFunc(schema.Service, func(f schema.Field[model.Service]) bool { return f.Text(&a) != f.Text(&b) })
}

// A circle is of entries that go back together.
type circle uint8

const (
	named      circle = iota // in what is wrong
	namespaces               // of those that were named
	everybody
)

// patience is how often those that are named go back before a wider circle does.
const patience = 3

// steps are taken one after the other, until one changes something.
var steps = []struct {
	circle
	form
}{{named, earlierSettings}, {namespaces, earlierSettings}, {named, earlier}, {namespaces, earlier}, {everybody, earlierSettings}, {everybody, earlier}}

// contradictions finds services that contradict others of the fleet: they go on as the fleet has them, and new ones wait. Which of several that
// contradict each other is named says nothing of which could go back: where that of those that are named is not enough, their namespaces do, which alone share
// addresses, and in the end all. What the fleet has made sense.
func (m *mapping) contradictions() {
	slices.SortStableFunc(m.entries, func(a, b entry) int { // what is there already is right
		return cmp.Compare(map[bool]int{true: 0, false: 1}[a.before != nil], map[bool]int{true: 0, false: 1}[b.before != nil])
	})
	fleet := model.Fleet{Keys: placeholder, Nodes: m.in.Balancers}
	for i := range m.in.Fleet {
		if s := &m.in.Fleet[i]; s.Owner != m.Owner {
			fleet.Services = append(fleet.Services, *s)
		}
	}
	others := len(fleet.Services)
	theirs := map[string]bool{} // wrong without our services
	for _, one := range unjoin(fleet.Validate()) {
		if one != nil {
			theirs[one.Error()] = true
		}
	}
	in := map[string]bool{}
	for round := 0; ; round++ {
		fleet.Services = fleet.Services[:others]
		for i := range m.entries {
			fleet.Services = append(fleet.Services, numbered(&m.entries[i].Service))
		}
		why, first := m.blame(fleet.Validate(), others, theirs)
		if first == "" {
			return
		}
		for i := range why {
			in[m.entries[i].namespace()] = true
		}
		moved := false
		for i := range steps {
			if i > 0 || round < patience {
				moved = moved || m.goBack(steps[i].circle, steps[i].form, why, in, first)
			}
		}
		if !moved {
			return
		}
	}
}

var atService = regexp.MustCompile(`^services\[(\d+)\]`)

// blame says what is wrong with which entries, and something that is wrong, empty: nothing that our services are in.
func (m *mapping) blame(err error, others int, theirs map[string]bool) (why map[int][]string, first string) {
	why = map[int][]string{}
	for _, one := range unjoin(err) {
		if one == nil || theirs[one.Error()] {
			continue
		}
		first = cmp.Or(first, reasonsOf(one))
		if found := atService.FindStringSubmatch(one.Error()); found != nil {
			if at, _ := strconv.Atoi(found[1]); at >= others {
				why[at-others] = append(why[at-others], reasonsOf(one))
			}
		}
	}
	return why, first
}

// namespace is that of the Service or Gateway.
func (e *entry) namespace() string {
	if e.of == nil {
		return ""
	}
	return e.of.key.Namespace
}

// goBack has the entries of a circle go on as the fleet has them, and reports whether that changes any. A Service or a Gateway gets all of its new services, or none.
func (m *mapping) goBack(c circle, to form, why map[int][]string, in map[string]bool, first string) (moved bool) {
	gone := map[*ours]bool{}
	for i := range m.entries {
		e := &m.entries[i]
		reasons, is := why[i]
		if !is && c == named || c == namespaces && !in[e.namespace()] || e.of == nil {
			continue
		}
		switch {
		case is:
			m.refuse(e.of, ReasonInvalid, e.Name+": "+strings.Join(reasons, "; "))
		case e.before == nil || e.form == asWanted && !SameSettings(e.before, &e.Service):
			m.refuse(e.of, ReasonInvalid, fmt.Sprintf("%s waits, as services contradict each other: %s", e.Name, first))
		}
		if e.before == nil {
			gone[e.of], moved = true, true
		} else if e.back(to) {
			moved = true
		}
	}
	m.entries = slices.DeleteFunc(m.entries, func(e entry) bool { return e.before == nil && gone[e.of] })
	return moved
}
