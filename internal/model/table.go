package model

import "time"

// DefaultIdleTimeout frees entries of connections that say nothing for so long. It costs them nothing but their statistics.
const DefaultIdleTimeout = Duration(5 * time.Minute)

func (t *Table) applyDefaults() {
	setDefault(&t.Entries, 0, DefaultEntries)
	setDefault(&t.IndexBits, 0, DefaultIndexBits)
	setDefault(&t.IdleTimeout, 0, DefaultIdleTimeout)
}

// Cookies reports whether the connections of such a service carry cookies.
func (a Affinity) Cookies() bool { return a == AffinityCookie || a == AffinityTable }
