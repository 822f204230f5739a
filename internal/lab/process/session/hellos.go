// Clients whose hellos are as long as they are told.
package session

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// HelloPlan says what hellos are sent: all clients at once, each its connections one after another.
type HelloPlan struct {
	Target  string   `json:"target"`
	Resumes int      `json:"resumes"` // connections of each after its first
	Clients []Hellos `json:"clients"`
}

// Hellos are those of one client.
type Hellos struct {
	Name   string `json:"name"`
	Source string `json:"source"` // address
	More   int    `json:"more"`   // bytes beyond what it needs
}

// HelloOutcome is what one client has seen.
type HelloOutcome struct {
	Servers []string      `json:"servers"` // of connections, until one broke
	Resumed int           `json:"resumed"`
	Broken  string        `json:"broken,omitempty"`
	Slowest time.Duration `json:"slowest"` // until the first answer
}

// protocolBytes is what a name of a protocol may have (RFC 7301 3.1).
const protocolBytes = 255

// RunHellos makes the connections, and says what each client has seen, by name. The plan is on in.
func RunHellos(ctx context.Context, in io.Reader, out io.Writer) error {
	var plan HelloPlan
	if err := json.NewDecoder(in).Decode(&plan); err != nil {
		return fmt.Errorf("read the plan of hellos: %w", err)
	}
	outcomes := map[string]*HelloOutcome{}
	var mutex sync.Mutex
	var all sync.WaitGroup
	for _, one := range plan.Clients {
		all.Go(func() {
			seen := one.run(ctx, plan.Target, plan.Resumes)
			mutex.Lock()
			defer mutex.Unlock()
			outcomes[one.Name] = seen
		})
	}
	all.Wait()
	return json.NewEncoder(out).Encode(outcomes)
}

func (h *Hellos) run(ctx context.Context, target string, resumes int) *HelloOutcome {
	seen := &HelloOutcome{}
	config := &tls.Config{InsecureSkipVerify: true, ServerName: "lab", ClientSessionCache: tls.NewLRUClientSessionCache(1), MinVersion: tls.VersionTLS13,
		CurvePreferences: []tls.CurveID{tls.X25519}}
	for left := h.More; left > 0; left -= 1 + protocolBytes { // servers that speak none of these go on without
		config.NextProtos = append(config.NextProtos, strings.Repeat("x", min(left, protocolBytes)))
	}
	for range 1 + resumes {
		begin := time.Now()
		server, resumed, err := h.connection(ctx, target, config)
		seen.Slowest = max(seen.Slowest, time.Since(begin))
		if err != nil {
			seen.Broken = err.Error()
			break
		}
		seen.Servers = append(seen.Servers, server)
		if resumed {
			seen.Resumed++
		}
	}
	return seen
}

// connection asks once.
func (h *Hellos) connection(ctx context.Context, target string, config *tls.Config) (server string, resumed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(h.Source)}}
	plain, err := dialer.DialContext(ctx, "tcp", target)
	if err != nil {
		return "", false, errors.Unwrap(err)
	}
	defer plain.Close()
	deadline, _ := ctx.Deadline()
	if err := plain.SetDeadline(deadline); err != nil {
		return "", false, err
	}
	conn := tls.Client(plain, config)
	answer, err := Speeches[""].ask(conn, bufio.NewReader(conn), true)
	return answer.Server, conn.ConnectionState().DidResume, err
}
