// Package tlsclient is clients that begin TLS sessions and resume them again and again: of Go, and those of others.
package tlsclient

import "time"

// Plan is what clients do. Groups differ in their names.
type Plan struct {
	Seed   uint64  `json:"seed"`
	Groups []Group `json:"groups"`
}

// Group is clients that do the same: each begins sessions, one after another, and resumes each in further connections.
type Group struct {
	Name     string        `json:"name"`
	Target   string        `json:"target"`
	Source   string        `json:"source"`   // address; empty: any
	Protocol string        `json:"protocol"` // of the server, as protocols lists them; empty: lines
	Program  string        `json:"program"`  // as programs lists them; empty: Go's client
	Clients  int           `json:"clients"`  // at once
	Sessions int           `json:"sessions"` // of each client; 0: until it is told to end
	Resumes  int           `json:"resumes"`  // connections of a session after its first
	Longest  time.Duration `json:"longest"`  // of a connection, whose length is random; 0: one request
	Early    bool          `json:"early"`    // OpenSSL's client sends early data with sessions of TLS 1.3
	TLS13    bool          `json:"tls13"`    // with a ClientHello of one segment; else sessions of TLS 1.2 and 1.3 alternate
	More     int           `json:"more"`     // bytes of a ClientHello beyond what it needs
	State    *State        `json:"state"`    // of requests to an application of package stateful, one in a connection
}

// State describes requests that change the state of a session.
type State struct {
	Bytes     int           `json:"bytes"`
	PerSecond float64       `json:"per_second"` // requests of all clients, due at random times; 0: each as soon as the one before has its answer
	For       time.Duration `json:"for"`
	UpTo      int           `json:"up_to"` // requests of a session, drawn from 1 to so many; 0: as the group says
}

// Outcome is what the clients of a group have seen.
type Outcome struct {
	Connections int            `json:"connections"`
	Resumed     int            `json:"resumed"` // TLS sessions, of these
	Retried     int            `json:"retried"` // with a HelloRetryRequest, of those of Go's client
	Early       int            `json:"early"`   // whose request was early data (0-RTT)
	Moved       map[string]int `json:"moved"`   // connections of a session at another server than the one before, by that
	Elsewhere   int            `json:"resumed_elsewhere"`
	Moves       []string       `json:"moves,omitempty"` // some of them
	Broken      map[string]int `json:"broken"`          // by error
	Servers     map[string]int `json:"servers"`         // of connections that were not broken
	Versions    map[string]int `json:"versions"`        // of sessions
	Slowest     time.Duration  `json:"slowest"`         // until the first answer, or the end, of a connection of Go's client

	// With State:
	Proxies   map[string]int `json:"proxies"`
	Forgotten int            `json:"forgotten"` // requests whose session the server did not know as it should
	PerSecond float64        `json:"per_second"`
	MeanMS    float64        `json:"mean_ms"` // from when a request was due
	P99MS     float64        `json:"p99_ms"`
	Uneven    float64        `json:"uneven"` // coefficient of variation of the connections that each server has at a time; once all have ended
}

// BrokenConnections are those that ended with an error.
func (o *Outcome) BrokenConnections() (count int) {
	for _, n := range o.Broken {
		count += n
	}
	return count
}

// Answered are the connections that were not broken.
func (o *Outcome) Answered() int { return o.Connections - o.BrokenConnections() }
