// Package traffic is the workload of a lab: real connections from one client namespace, each watched
// from its first SYN to its last byte. It runs as a process of its own inside that namespace, reads a
// Plan from standard input and writes Events to standard output, one JSON value a line.
package traffic

import (
	"encoding/json"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/data"
)

// Stop is the line that ends a running plan: no new connections, repeating ones finish their request.
const Stop = "stop"

// A Plan is what one client process does.
type Plan struct {
	Seed    uint64        `json:"seed"`
	Sources []string      `json:"sources"` // addresses to connect from, in turn
	Stall   time.Duration `json:"stall"`   // a connection without progress this long counts as broken
	Timed   bool          `json:"timed"`   // report when each request was answered over TCP, and how long that took
	Flows   []Flow        `json:"flows"`
}

// A Flow is many connections of one kind.
type Flow struct {
	Name       string        `json:"name"`
	Target     string        `json:"target"`     // host:port
	UDP        bool          `json:"udp"`        // requests are datagrams of Bytes that must be echoed
	HTTP3      bool          `json:"http3"`      // over QUIC
	MPTCP      bool          `json:"mptcp"`      // over MPTCP; a connection that becomes plain TCP is of OtherError
	Count      int           `json:"count"`      // connections in all; 0 = until stopped
	Concurrent int           `json:"concurrent"` // open at once, at most
	PerSecond  float64       `json:"per_second"` // rate of new connections; 0 = as fast as Concurrent allows
	Requests   []Request     `json:"requests"`   // on each connection, in this order
	Repeat     bool          `json:"repeat"`     // begin again with the first request until stopped
	Move       time.Duration `json:"move"`       // HTTP3: the client's port changes about that often, as by a NAT that forgets; 0: never
	Migrate    bool          `json:"migrate"`    // with Move: and QUIC knows of it (RFC 9000 9)

	Again time.Duration `json:"again"` // UDP: a datagram that was not echoed is sent again after that long; 0: never

	Early bool `json:"early"` // HTTP3: downloads are asked for in the first flight (0-RTT), from the second connection on

	Arrivals *Arrivals `json:"arrivals"` // not nil: an open loop; Count, Concurrent, PerSecond and Repeat are ignored
}

// A Request is one exchange on a connection.
type Request struct {
	Pause  time.Duration     `json:"pause"` // idle time of the connection before the request
	Path   string            `json:"path"`
	Bytes  int64             `json:"bytes"`  // length of the download, or of the upload
	Upload bool              `json:"upload"` // PUT Bytes bytes instead of getting them
	Draw   data.Distribution `json:"draw"`   // open loop: a value of each connection's own, in place of Drawn in Path, else of Bytes
}

// Drawn is the place in a request's path where a drawn value goes.
const Drawn = "{}"

// Class is how a connection ended.
type Class string

// A connection is broken by anything but Completed; nothing is excused. Only a comparison of policies tells Refused apart.
const (
	Completed      Class = "completed"
	Refused        Class = "refused" // the application answered that it has too much to do
	ConnectTimeout Class = "connect-timeout"
	ConnectRefused Class = "connect-refused"
	Reset          Class = "reset"
	Stalled        Class = "stalled"   // no progress for the plan's Stall
	Truncated      Class = "truncated" // closed before the end of a body
	Closed         Class = "closed"    // closed while idle between requests
	Moved          Class = "moved"     // another server answered in mid-connection
	WrongAnswer    Class = "wrong"     // status, length or content are not what was asked for
	OtherError     Class = "other"
)

// An Event is one line of the client's output: exactly one field is set.
type Event struct {
	Connection *Connection `json:"connection,omitempty"`
	Progress   *Progress   `json:"progress,omitempty"`
	Answers    []Answer    `json:"answers,omitempty"` // of a timed plan, since the last event that had some
	Done       bool        `json:"done,omitempty"`
}

// An Answer is a request that was answered to the last byte. It is written as two numbers: there are many.
type Answer struct {
	At   time.Time     // of the last byte
	Took time.Duration // since the request was sent; of the first on a connection since the SYN
}

// MarshalJSON writes nanoseconds since 1970, and of the time that it took.
func (a Answer) MarshalJSON() ([]byte, error) {
	return json.Marshal([2]int64{a.At.UnixNano(), int64(a.Took)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (a *Answer) UnmarshalJSON(text []byte) error {
	var numbers [2]int64
	if err := json.Unmarshal(text, &numbers); err != nil {
		return err
	}
	a.At, a.Took = time.Unix(0, numbers[0]), time.Duration(numbers[1])
	return nil
}

// A Connection is the fate of one connection.
type Connection struct {
	Flow     string    `json:"flow"`
	Source   string    `json:"source"`
	Server   string    `json:"server"`
	Class    Class     `json:"class"`
	Detail   string    `json:"detail,omitempty"`
	Requests int       `json:"requests"`
	Bytes    int64     `json:"bytes"`
	Started  time.Time `json:"started"` // open loop: when it was due, even if the client was late
	Ended    time.Time `json:"ended"`

	Early           bool `json:"early,omitempty"`      // HTTP3: the server took what came in the first flight
	LongClientHello bool `json:"long_hello,omitempty"` // HTTP3: the hello had a key of ML-KEM and more than one datagram
}

// Progress is the state of a running plan.
type Progress struct {
	Attempted    int            `json:"attempted"`
	Open         int            `json:"open"`
	Completed    int            `json:"completed"`
	Broken       int            `json:"broken"`
	Bytes        int64          `json:"bytes"`
	Moved        int            `json:"moved"` // changes of clients' ports
	OpenByServer map[string]int `json:"open_by_server"`
	OpenByFlow   map[string]int `json:"open_by_flow"`
}

// Served is how many open connections have a server.
func (p *Progress) Served() (count int) {
	for _, open := range p.OpenByServer {
		count += open
	}
	return count
}
