package scenario

import "container/heap"

// calendar has the next time of each event that is to happen still: one entry for each, however often it happens. Make it by newCalendar.
type calendar struct{ next []happening } // a heap

// happening is an event at one of its times.
type happening struct {
	at    int64 // ns since the start of the world
	event int   // of the scenario
}

func newCalendar(s *Scenario) *calendar {
	c := &calendar{}
	for i, event := range s.Events {
		c.next = append(c.next, happening{s.WarmUp + event.At, i})
	}
	heap.Init(c)
	return c
}

// popUntil takes out what happens first, at a time at the latest; of what happens at the same time, what is first in the file.
func (c *calendar) popUntil(s *Scenario, until int64) (h happening, ok bool) {
	if len(c.next) == 0 || c.next[0].at > until {
		return happening{}, false
	}
	h = c.next[0]
	if e := s.Events[h.event]; e.Every > 0 && h.at+e.Every <= s.WarmUp+e.Until {
		c.next[0].at += e.Every
		heap.Fix(c, 0)
	} else {
		heap.Pop(c)
	}
	return h, true
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (c *calendar) Len() int { return len(c.next) }

func (c *calendar) Less(i, j int) bool {
	a, b := c.next[i], c.next[j]
	return a.at < b.at || a.at == b.at && a.event < b.event
}

func (c *calendar) Swap(i, j int) { c.next[i], c.next[j] = c.next[j], c.next[i] }

func (c *calendar) Push(x any) { c.next = append(c.next, x.(happening)) }

func (c *calendar) Pop() any {
	last := len(c.next) - 1
	h := c.next[last]
	c.next = c.next[:last]
	return h
}
