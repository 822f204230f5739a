package api

import (
	"fmt"
	"net/netip"
	"time"
)

// Routes of a load balancer's daemon about connection tables (affinity table). What they tell and change is of this node alone.
const (
	PathConnections = "/v1/connections" // GET: see ConnectionQuery
	PathSuspects    = "/v1/suspects"    // GET; POST and DELETE of a Suspect
)

// ConnectionQuery chooses connections. As a URL's query its fields are as their tags say; zero ones match anything.
type ConnectionQuery struct {
	Service    string       `json:"service"`
	Server     string       `json:"server"` // name
	Client     netip.Prefix `json:"client"`
	State      string       `json:"state"` // new, open, finished, reset
	Suspects   bool         `json:"suspects"`
	MinPackets uint64       `json:"min_packets"`
	MinBytes   uint64       `json:"min_bytes"`
	MinAge     Seconds      `json:"min_age"`
	MinIdle    Seconds      `json:"min_idle"`
	Sort       string       `json:"sort"`  // packets (default), bytes, age, idle: the largest first
	Limit      int          `json:"limit"` // 0: DefaultConnections
}

// How many connections an answer has at most.
const (
	DefaultConnections = 20
	MaxConnections     = 100_000
)

// Seconds is a duration as JSON has it.
type Seconds float64

// Check tells why s cannot be a duration that somebody asks for; nil: it can.
func (s Seconds) Check() error {
	if s >= 0 && float64(s)*float64(time.Second) < 1<<63 { // else NaN, too
		return nil
	}
	return fmt.Errorf("%g seconds: use 0 to 9223372036, which is 292 years", float64(s))
}

// Duration is s in Go's own way. Where s is somebody else's, Check it before.
func (s Seconds) Duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

// InSeconds is d as JSON has it.
func InSeconds(d time.Duration) Seconds { return Seconds(d.Seconds()) }

// Connections answers PathConnections.
type Connections struct {
	Node        string            `json:"node"`
	Matched     uint64            `json:"matched"`               // connections that the query chooses
	Connections []Connection      `json:"connections"`           // the first of these
	Tables      []ConnectionTable `json:"tables"`                // as a whole, of all services asked for
	SecondTier  []string          `json:"second_tier,omitempty"` // services whose tables are not here, but at nodes of the second tier
}

// Connection is one entry of a table: of a client's packets to a server, as this node saw them.
type Connection struct {
	Service string         `json:"service"`
	Server  string         `json:"server"`
	ID      uint16         `json:"id"` // of the server
	Client  netip.AddrPort `json:"client"`
	State   string         `json:"state"`
	Suspect bool           `json:"suspect,omitempty"`
	Packets uint32         `json:"packets"`
	Bytes   uint64         `json:"bytes"`
	Age     Seconds        `json:"age_seconds"`  // of the entry, to a second or so
	Idle    Seconds        `json:"idle_seconds"` // since the last packet
	Entry   uint32         `json:"entry"`        // number; a connection keeps it
}

// ConnectionTable is what a service's table is used for.
type ConnectionTable struct {
	Service string `json:"service"`
	Entries uint32 `json:"entries"` // that there are
	Used    uint32 `json:"used"`    // by connections that live
	Free    uint32 `json:"free"`
	Ended   uint32 `json:"ended"` // may be taken, and still tell of a connection
	ConnectionCounts
	Servers []ServerConnections `json:"servers"`
}

// ConnectionCounts are connections by state, and what their clients have sent.
type ConnectionCounts struct {
	New      uint32 `json:"new"`
	Open     uint32 `json:"open"`
	Finished uint32 `json:"finished"`
	Reset    uint32 `json:"reset"`
	Suspects uint32 `json:"suspects"` // of the above
	Packets  uint64 `json:"packets"`
	Bytes    uint64 `json:"bytes"`
}

// ServerConnections is a server's part of a table.
type ServerConnections struct {
	Server string `json:"server"`
	ID     uint16 `json:"id"`
	ConnectionCounts
}

// Suspect is a client, or a network of them, whose packets to a service visit its scrubber first.
type Suspect struct {
	Service string       `json:"service"`
	Client  netip.Prefix `json:"client"`
	For     Seconds      `json:"for_seconds,omitempty"` // POST: until then; 0: until it is cleared
	Until   time.Time    `json:"until,omitzero"`        // GET: zero: until it is cleared
}

// EndedConnection is a line of the flow log: a connection that has left a table.
type EndedConnection struct {
	Node      string         `json:"node"`
	Service   string         `json:"service"`
	Server    string         `json:"server"`
	ID        uint16         `json:"id"` // of the server
	Client    netip.AddrPort `json:"client"`
	First     time.Time      `json:"first"` // when the entry was made: the first packet after the handshake
	Last      time.Time      `json:"last"`  // packet of the client
	Duration  Seconds        `json:"duration_seconds"`
	Packets   uint32         `json:"packets"`
	Bytes     uint64         `json:"bytes"`
	Reason    string         `json:"reason"`              // fin, rst, idle, never-used
	Reclaimed bool           `json:"reclaimed,omitempty"` // another connection needed its index
	Suspect   bool           `json:"suspect,omitempty"`
}
