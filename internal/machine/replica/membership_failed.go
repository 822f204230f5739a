// Who has failed, and who has lost its entries.
package replica

import (
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

// expel takes off who has failed, and gives another life to who has lost what it knew.
func (m *Membership) expel(now time.Time, said map[uint16]*Report) bool {
	list := m.Members.Current()
	change := Change{Fail: m.failed(now, list, said)}
	for _, member := range list {
		r := said[member.Node]
		switch {
		case r == nil || !r.fresh() || r.Incarnation == m.incarnation(member.Node) || slices.Contains(change.Fail, member.Node):
		case m.of(member.Node).mayRestart(now):
			change.Restart = append(change.Restart, member.Node)
		default:
			change.Fail = append(change.Fail, member.Node)
		}
	}
	slices.Sort(change.Fail)
	if len(change.Fail)+len(change.Restart) == 0 || !m.change(change) {
		return false
	}
	m.learn(said, change.Restart)
	for _, number := range slices.Concat(change.Fail, change.Restart) {
		m.of(number).note(now)
	}
	for _, number := range change.Fail {
		m.left[number] = true
		delete(m.heard, number)
	}
	return true
}

func (m *Membership) incarnation(number uint16) uint64 {
	for i := range m.Members.Nodes {
		if m.Members.Nodes[i].Number == number {
			return m.Members.Nodes[i].Incarnation
		}
	}
	return 0
}

// failed returns the nodes that most others do not hear, and those that have said nothing for long.
//
// Only those count who are heard by most themselves: of two halves of a fleet that do not hear each other none takes the other off.
func (m *Membership) failed(now time.Time, list ring.List, said map[uint16]*Report) (failed []uint16) {
	left := slices.Clone(list)
	for {
		worst, most := uint16(0), 0
		for _, member := range left {
			if silent := m.silentTo(member.Node, left, said); silent > most {
				worst, most = member.Node, silent
			}
		}
		if worst == 0 {
			break
		}
		failed, left = append(failed, worst), left.Remove(worst)
	}
	var dead []uint16
	for _, member := range left {
		age := now.Sub(m.began)
		if r := said[member.Node]; r != nil {
			age = r.Age
		}
		if age >= deadAfter {
			dead = append(dead, member.Node)
		}
	}
	if 2*len(dead) < len(left) { // else it is this controller that hears nobody
		failed = append(failed, dead...)
	}
	slices.Sort(failed)
	return failed
}

// silentTo returns how many nodes of a list do not hear one, if these are most of the others; else 0.
func (m *Membership) silentTo(number uint16, list ring.List, said map[uint16]*Report) int {
	others, silent := 0, 0
	for _, member := range list {
		r := said[member.Node]
		if member.Node == number || r == nil || !r.fresh() {
			continue
		}
		others++
		if slices.Contains(r.Silent, number) && isHeard(member.Node, list, said) {
			silent++
		}
	}
	if 2*silent <= others {
		return 0
	}
	return silent
}

// isHeard reports whether at least half of the other nodes of a list do not miss a node.
func isHeard(number uint16, list ring.List, said map[uint16]*Report) bool {
	others, silent := 0, 0
	for _, member := range list {
		r := said[member.Node]
		if member.Node == number || r == nil || !r.fresh() {
			continue
		}
		others++
		if slices.Contains(r.Silent, number) {
			silent++
		}
	}
	return 2*silent <= others && others > 0
}
