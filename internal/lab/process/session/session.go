// Package session has a lab's TLS servers, whose session tickets name them, and clients that resume their sessions again and again.
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

	"github.com/ballast-lb/ballast/internal/lab/process/identity"
	"github.com/ballast-lb/ballast/pkg/sessionticket"
)

// Server says what a server serves.
type Server struct {
	Address string `json:"address"` // host:port to serve on
	Name    string `json:"name"`    // what it answers each line with
	Tickets string `json:"tickets"` // the agent's file of the service
}

// Clients say what clients do until they are told to end.
type Clients struct {
	Target   string        `json:"target"`
	Sessions int           `json:"sessions"` // at once
	Seed     uint64        `json:"seed"`
	Longest  time.Duration `json:"longest"` // of a connection
}

// Outcome is what clients have seen.
type Outcome struct {
	Connections int            `json:"connections"`
	Resumed     int            `json:"resumed"` // TLS sessions, of these
	Moved       map[string]int `json:"moved"`   // connections of a session at another server than its first, by that
	Broken      map[string]int `json:"broken"`  // by error
	Servers     map[string]int `json:"servers"` // of first connections
	Versions    map[string]int `json:"versions"`
}

// Implementation constants.
const (
	patient = 20 * time.Second      // for an answer
	pause   = 50 * time.Millisecond // between lines of a connection
	told    = 200 * time.Millisecond
	resumes = 8 // connections of a session after its first
)

// Serve answers each line by its name until ctx ends. The options are written in JSON.
func Serve(ctx context.Context, text string) error {
	var o Server
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return fmt.Errorf("read the options of a TLS server: %w", err)
	}
	certificate, err := identity.SelfSigned()
	if err != nil {
		return err
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}}
	if o.Tickets != "" {
		tickets, err := identity.Await(ctx, sessionticket.Open, o.Tickets)
		if err != nil {
			return err
		}
		tickets.Configure(config)
	}
	var listen net.ListenConfig
	listen.SetMultipathTCP(false) // as Go's listeners have it: the kernel takes no connection over for them
	listener, err := listen.Listen(ctx, "tcp", o.Address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", o.Address, err)
	}
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept on %s: %w", o.Address, err)
		}
		go answer(tls.Server(conn, config), o.Name)
	}
}

func answer(conn net.Conn, name string) {
	defer conn.Close()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if _, err := fmt.Fprintln(conn, name); err != nil {
			return
		}
	}
}

// client is one of many.
type client struct {
	*Clients
	mutex   *sync.Mutex
	outcome *Outcome
	random  *mathrand.Rand
}

// Run has clients begin and resume sessions until ctx ends, and says on a line now and then what they have seen. The options are on in.
func Run(ctx context.Context, in io.Reader, out io.Writer) error {
	var o Clients
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return fmt.Errorf("read the options of TLS clients: %w", err)
	}
	outcome := &Outcome{Moved: map[string]int{}, Broken: map[string]int{}, Servers: map[string]int{}, Versions: map[string]int{}}
	var mutex sync.Mutex
	var all sync.WaitGroup
	for i := range o.Sessions {
		c := &client{Clients: &o, mutex: &mutex, outcome: outcome, random: mathrand.New(mathrand.NewPCG(o.Seed, uint64(i)))}
		all.Go(func() {
			for ctx.Err() == nil {
				c.session(ctx)
			}
		})
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	say := func() error {
		mutex.Lock()
		defer mutex.Unlock()
		return json.NewEncoder(out).Encode(outcome)
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
	// With ML-KEM, which Go offers by itself, hellos of TLS 1.3 take two segments.
	curves := [][]tls.CurveID{nil, {tls.X25519}}[c.random.IntN(2)]
	config := &tls.Config{InsecureSkipVerify: true, ServerName: "lab", ClientSessionCache: tls.NewLRUClientSessionCache(1),
		CurvePreferences: curves, MaxVersion: []uint16{tls.VersionTLS12, tls.VersionTLS13}[c.random.IntN(2)]}
	first := ""
	for i := 0; i <= resumes && ctx.Err() == nil; i++ {
		server, state, err := c.connection(ctx, config)
		c.note(func(o *Outcome) {
			o.Connections++
			switch {
			case err != nil:
				o.Broken[err.Error()]++
				return
			case i == 0:
				first = server
				o.Servers[server]++
				o.Versions[tls.VersionName(state.Version)]++
			case server != first:
				o.Moved[first]++
			}
			if state.DidResume {
				o.Resumed++
			}
		})
		if err != nil {
			return
		}
	}
}

func (c *client) note(what func(*Outcome)) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	what(c.outcome)
}

// connection asks for the server's name for a while: it must stay the same.
func (c *client) connection(ctx context.Context, config *tls.Config) (server string, state tls.ConnectionState, err error) {
	dialer := net.Dialer{Timeout: patient}
	plain, err := dialer.Dial("tcp", c.Target)
	if err != nil {
		return "", state, errors.Unwrap(err)
	}
	conn := tls.Client(plain, config)
	defer conn.Close()
	lines, end := bufio.NewScanner(conn), time.Now().Add(time.Duration(c.random.Int64N(int64(c.Longest))))
	for {
		if err := conn.SetDeadline(time.Now().Add(patient)); err != nil {
			return "", state, err
		}
		if _, err := fmt.Fprintln(conn, "who"); err != nil {
			return "", state, fmt.Errorf("write: %w", errors.Unwrap(err))
		}
		if !lines.Scan() {
			return "", state, fmt.Errorf("read: %v", lines.Err())
		}
		if server != "" && lines.Text() != server {
			return "", state, errors.New("two servers in one connection")
		}
		server = lines.Text()
		if ctx.Err() != nil || time.Now().After(end) {
			return server, conn.ConnectionState(), nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}
