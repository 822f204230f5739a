package tlsclient

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Patient is how long a session of a program may take, of which one connection may take patient.
const Patient = 3 * patient

// Implementation constants.
const (
	patient      = 20 * time.Second      // for an answer
	patientState = 30 * time.Second      // with State
	pause        = 50 * time.Millisecond // between requests in a connection

	protocolBytes = 255 // of a name of a protocol, at most (RFC 7301 3.1)
)

var versions = []uint16{tls.VersionTLS12, tls.VersionTLS13}

// shortCurves make ClientHellos of one segment: with ML-KEM, which Go offers by itself, those of TLS 1.3 take two.
// OpenSSL wants its certificate's curve named with TLS 1.2.
var shortCurves = []tls.CurveID{tls.X25519, tls.CurveP256}

func versionName(version uint16) string { return tls.VersionName(version) }

// version is that of the session that a client begins.
func (c *client) version() uint16 {
	if c.TLS13 {
		return tls.VersionTLS13
	}
	return versions[c.begun%len(versions)]
}

// config is that of a session.
func (c *client) config(version uint16) *tls.Config {
	config := &tls.Config{InsecureSkipVerify: true, ServerName: "lab", ClientSessionCache: tls.NewLRUClientSessionCache(1), MaxVersion: version}
	if c.TLS13 || c.begun/len(versions)%2 == 1 {
		config.CurvePreferences = shortCurves
	}
	for left := c.More; left > 0; left -= 1 + protocolBytes { // servers that speak none of these go on without
		config.NextProtos = append(config.NextProtos, strings.Repeat("x", min(left, protocolBytes)))
	}
	return config
}

// visits makes the connections of a session, and reports what was seen in each.
func (c *client) visits(ctx context.Context, version uint16, saw func(visit)) error {
	if c.Program != "" {
		return programs[c.Program](c, ctx, version, saw)
	}
	config := c.config(version)
	s := newDialog(c)
	for ; s.number <= s.resumes && ctx.Err() == nil && c.awaitDue(ctx); s.number++ {
		seen, err := c.connection(ctx, config, s)
		if err != nil {
			return err
		}
		saw(seen)
		if seen.Forgotten {
			return nil
		}
	}
	return nil
}

// awaitDue waits until the next request with State is due; false: it comes too late. Times do not depend on answers.
func (c *client) awaitDue(ctx context.Context) bool {
	if c.State == nil || c.State.PerSecond == 0 {
		c.due = time.Now()
		return true
	}
	c.due = c.due.Add(time.Duration(c.random.ExpFloat64() * float64(time.Second) * float64(c.Clients) / c.State.PerSecond))
	if c.late = c.due.Sub(c.begin) > c.State.For; c.late {
		return false
	}
	sleep(ctx, time.Until(c.due))
	return ctx.Err() == nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// length is how long a connection lasts.
func (c *client) length() time.Duration {
	if c.Longest == 0 {
		return 0
	}
	return time.Duration(c.random.Int64N(int64(c.Longest)))
}

// patience is how long a client waits for an answer.
func (g *Group) patience() time.Duration {
	if g.State != nil {
		return patientState
	}
	return patient
}

// connection asks who the server is for a while: it must stay the same.
func (c *client) connection(ctx context.Context, config *tls.Config, s *dialog) (seen visit, err error) {
	begin, first := time.Now(), true
	defer func() {
		if err != nil && first {
			c.took(begin)
		}
	}()
	dialer := net.Dialer{Timeout: c.patience(), LocalAddr: &net.TCPAddr{IP: net.ParseIP(c.Source)}}
	plain, err := dialer.Dial("tcp", c.Target)
	if err != nil {
		return seen, errors.Unwrap(err)
	}
	conn := tls.Client(plain, config)
	defer conn.Close() // first: servers keep no TIME_WAIT
	reader, end := bufio.NewReader(conn), time.Now().Add(c.length())
	for ; ; first = false {
		if err := conn.SetDeadline(time.Now().Add(c.patience())); err != nil {
			return seen, err
		}
		now, err := s.ask(conn, reader, first)
		if err != nil {
			return seen, err
		}
		state := conn.ConnectionState()
		switch {
		case state.Version != config.MaxVersion:
			return seen, fmt.Errorf("%s instead of %s", tls.VersionName(state.Version), tls.VersionName(config.MaxVersion))
		case now.Resumed != nil && *now.Resumed != state.DidResume:
			return seen, fmt.Errorf("resumed: %t by the client, %t by the server", state.DidResume, *now.Resumed)
		case !first && now.Server != "" && now.Server != seen.Server:
			return seen, errors.New("two servers in one connection")
		case first:
			seen = visit{Answer: now, resumed: state.DidResume, retried: state.HelloRetryRequest}
			c.took(begin)
			c.answered(begin, now.Server)
		}
		if ctx.Err() != nil || !time.Now().Before(end) {
			return seen, nil
		}
		sleep(ctx, pause)
	}
}
