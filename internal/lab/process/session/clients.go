package session

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"sync"
	"time"
)

// Plan says what clients do until they are told to end.
type Plan struct {
	Seed    uint64        `json:"seed"`
	Longest time.Duration `json:"longest"` // of a connection
	Clients []Clients     `json:"clients"`
}

// Clients are those that do the same.
type Clients struct {
	Name     string `json:"name"`
	Target   string `json:"target"`
	Speech   string `json:"speech"`   // what servers speak, as Speeches lists it; empty: lines
	Program  string `json:"program"`  // as Programs lists it; empty: Go's client
	Sessions int    `json:"sessions"` // at once
}

// Outcome is what the clients of a name have seen.
type Outcome struct {
	Connections int            `json:"connections"`
	Resumed     int            `json:"resumed"` // TLS sessions, of these
	Moved       map[string]int `json:"moved"`   // connections of a session at another server than the one before, by that
	Elsewhere   int            `json:"resumed_elsewhere"`
	Moves       []string       `json:"moves,omitempty"` // some of them
	Broken      map[string]int `json:"broken"`          // by error
	Servers     map[string]int `json:"servers"`         // of first connections
	Versions    map[string]int `json:"versions"`
}

// Patient is how long a session of a program may take, of which one connection may take patient.
const Patient = 3 * patient

// Implementation constants.
const (
	patient = 20 * time.Second      // for an answer
	pause   = 50 * time.Millisecond // between questions in a connection
	told    = 200 * time.Millisecond
	resumes = 8 // connections of a session after its first

	movesMost = 16
)

var versions = []uint16{tls.VersionTLS12, tls.VersionTLS13}

// client is one of many.
type client struct {
	*Clients
	longest time.Duration
	mutex   *sync.Mutex
	outcome *Outcome
	random  *mathrand.Rand
	begun   int // sessions, by which they differ
}

// visit is what a client has seen in one connection.
type visit struct {
	server  string
	resumed bool
}

// Run has clients begin and resume sessions until ctx ends, and says on a line now and then what they have seen, by their names. The plan is on in.
func Run(ctx context.Context, in io.Reader, out io.Writer) error {
	var plan Plan
	if err := json.NewDecoder(in).Decode(&plan); err != nil {
		return fmt.Errorf("read the plan of TLS clients: %w", err)
	}
	outcomes := map[string]*Outcome{}
	var mutex sync.Mutex
	var all sync.WaitGroup
	stream := uint64(0)
	for i := range plan.Clients {
		of := &plan.Clients[i]
		outcome := &Outcome{Moved: map[string]int{}, Broken: map[string]int{}, Servers: map[string]int{}, Versions: map[string]int{}}
		outcomes[of.Name] = outcome
		for range of.Sessions {
			c := &client{Clients: of, longest: plan.Longest, mutex: &mutex, outcome: outcome, random: mathrand.New(mathrand.NewPCG(plan.Seed, stream)), begun: int(stream)}
			stream++
			all.Go(func() {
				for ctx.Err() == nil {
					c.session(ctx)
				}
			})
		}
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	say := func() error {
		mutex.Lock()
		defer mutex.Unlock()
		return json.NewEncoder(out).Encode(outcomes)
	}
	for {
		select {
		case <-ended:
			return say()
		case <-time.After(told):
			if err := say(); err != nil {
				return err
			}
		}
	}
}

// session begins a session and resumes it.
func (c *client) session(ctx context.Context) {
	c.begun++
	version, before := versions[c.begun%len(versions)], ""
	err := c.visits(ctx, version, func(v visit) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		o := c.outcome
		o.Connections++
		if v.resumed {
			o.Resumed++
		}
		switch before {
		case v.server:
		case "":
			o.Servers[v.server]++
			o.Versions[tls.VersionName(version)]++
		default:
			o.Moved[before]++
			if len(o.Moves) < movesMost {
				o.Moves = append(o.Moves, fmt.Sprintf("%s %s: %s to %s, resumed: %t", time.Now().Format(time.TimeOnly), tls.VersionName(version), before, v.server, v.resumed))
			}
			if v.resumed {
				o.Elsewhere++
			}
		}
		before = v.server
	})
	if err != nil {
		c.mutex.Lock()
		c.outcome.Connections++
		c.outcome.Broken[err.Error()]++
		c.mutex.Unlock()
	}
}

// visits makes the connections of a session, and tells of each what was seen there.
func (c *client) visits(ctx context.Context, version uint16, saw func(visit)) error {
	if c.Program != "" {
		return Programs[c.Program](c, ctx, version, saw)
	}
	// With ML-KEM, which Go offers by itself, hellos of TLS 1.3 take two segments. OpenSSL wants its certificate's curve named with TLS 1.2.
	curves := [][]tls.CurveID{nil, {tls.X25519, tls.CurveP256}}[c.begun/len(versions)%2]
	config := &tls.Config{InsecureSkipVerify: true, ServerName: "lab", ClientSessionCache: tls.NewLRUClientSessionCache(1), CurvePreferences: curves, MaxVersion: version}
	for i := 0; i <= resumes && ctx.Err() == nil; i++ {
		seen, err := c.connection(ctx, config)
		if err != nil {
			return err
		}
		saw(seen)
	}
	return nil
}

// connection asks who the server is for a while: it must stay the same.
func (c *client) connection(ctx context.Context, config *tls.Config) (seen visit, err error) {
	dialer := net.Dialer{Timeout: patient}
	plain, err := dialer.Dial("tcp", c.Target)
	if err != nil {
		return seen, errors.Unwrap(err)
	}
	conn := tls.Client(plain, config)
	defer conn.Close()
	speech, said, end := Speeches[c.Speech], bufio.NewReader(conn), time.Now().Add(time.Duration(c.random.Int64N(int64(c.longest))))
	for first := true; ; first = false {
		if err := conn.SetDeadline(time.Now().Add(patient)); err != nil {
			return seen, err
		}
		now, err := speech.ask(conn, said, first)
		if err != nil {
			return seen, err
		}
		state := conn.ConnectionState()
		switch {
		case state.Version != config.MaxVersion:
			return seen, fmt.Errorf("%s instead of %s", tls.VersionName(state.Version), tls.VersionName(config.MaxVersion))
		case now.Resumed != nil && *now.Resumed != state.DidResume:
			return seen, fmt.Errorf("resumed: %t says the client, %t the server", state.DidResume, *now.Resumed)
		case !first && now.Server != "" && now.Server != seen.server:
			return seen, errors.New("two servers in one connection")
		case first:
			seen = visit{now.Server, state.DidResume}
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return seen, nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}
