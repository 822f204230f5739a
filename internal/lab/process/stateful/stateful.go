// Package stateful is an application that keeps a state for each session of its users, in its memory or in Redis.
package stateful

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/identity"
	"github.com/ballast-lb/ballast/pkg/sessionticket"
)

// Names of cookies and headers.
const (
	SessionCookie = "session" // clients choose it
	RouteCookie   = "route"   // the server that a session began at
	ServerHeader  = "X-Server"
	CountHeader   = "X-Count" // requests of the session that its state knows of
	ProxyHeader   = "X-Proxy" // what a proxy calls itself
)

// Implementation constants.
const (
	workBytes = 1 << 20 // that are hashed for each request, beside its state
	maxState  = 16 << 20
	minState  = 12 // count and checksum
)

// Options describe a server.
type Options struct {
	Address   string `json:"address"`
	Name      string `json:"name"`
	TLS       bool   `json:"tls"`
	Tickets   string `json:"tickets"`    // the agent's file of the service; empty: tickets name no server
	TicketKey []byte `json:"ticket_key"` // of all servers, for such tickets
	Redis     string `json:"redis"`      // where states are; empty: in memory
}

// states is where they are kept. Those that are not there are nil.
type states interface {
	get(ctx context.Context, session string) ([]byte, error)
	put(ctx context.Context, session string, state []byte) error
	end(ctx context.Context, session string) error
}

// Run serves until ctx ends.
func Run(ctx context.Context, o Options) error {
	s := &server{name: o.Name, states: &memory{states: map[string][]byte{}}}
	if o.Redis != "" {
		s.states = newRedis(o.Redis, nil)
	}
	var config net.ListenConfig
	config.SetMultipathTCP(false) // the kernel takes no connection over for such listeners
	listener, err := config.Listen(ctx, "tcp", o.Address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", o.Address, err)
	}
	if o.TLS {
		encrypted, err := o.config(ctx)
		if err != nil {
			return err
		}
		listener = tls.NewListener(listener, encrypted)
	}
	serving := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = serving.Close() })()
	if err := serving.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// config is that of TLS.
func (o *Options) config(ctx context.Context) (*tls.Config, error) {
	certificate, err := identity.SelfSigned()
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}}
	if o.Tickets == "" {
		config.SetSessionTicketKeys([][32]byte{[32]byte(o.TicketKey)})
		return config, nil
	}
	tickets, err := identity.Await(ctx, sessionticket.Open, o.Tickets)
	if err != nil {
		return nil, err
	}
	tickets.Configure(config)
	return config, nil
}

type server struct {
	name   string
	states states
}

// ServeHTTP reads the whole state of the session, changes it and keeps it. `bytes` is how long it is, `last` ends it.
func (s *server) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	cookie, err := request.Cookie(SessionCookie)
	length, wrong := strconv.Atoi(request.FormValue("bytes"))
	if err != nil || wrong != nil || length < minState || length > maxState {
		http.Error(out, "give a session and a length", http.StatusBadRequest)
		return
	}
	count, err := s.visit(request.Context(), cookie.Value, length, request.FormValue("last") != "")
	if err != nil {
		http.Error(out, err.Error(), http.StatusInternalServerError)
		return
	}
	work()
	out.Header().Set(ServerHeader, s.name)
	out.Header().Set(CountHeader, strconv.FormatUint(count, 10))
	if _, err := request.Cookie(RouteCookie); err != nil {
		http.SetCookie(out, &http.Cookie{Name: RouteCookie, Value: s.name})
	}
}

func (s *server) visit(ctx context.Context, session string, length int, last bool) (count uint64, err error) {
	state, err := s.states.get(ctx, session)
	switch {
	case err != nil:
		return 0, err
	case state == nil:
		state = make([]byte, length)
	case len(state) != length || binary.BigEndian.Uint32(state[8:]) != crc32.ChecksumIEEE(state[minState:]):
		return 0, errors.New("the state is not as it was kept")
	}
	count = binary.BigEndian.Uint64(state) + 1
	binary.BigEndian.PutUint64(state, count)
	for i := minState; i < len(state); i += 64 {
		state[i]++
	}
	binary.BigEndian.PutUint32(state[8:], crc32.ChecksumIEEE(state[minState:]))
	if last {
		return count, s.states.end(ctx, session)
	}
	return count, s.states.put(ctx, session, state)
}

var page = bytes.Repeat([]byte("page"), workBytes/4)

// work is what an application does for each request besides.
func work() { _ = sha256.Sum256(page) }

// memory is that of this server. Requests of one session come one after another.
type memory struct {
	mutex  sync.Mutex
	states map[string][]byte
}

func (m *memory) get(_ context.Context, session string) ([]byte, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.states[session], nil
}

func (m *memory) put(_ context.Context, session string, state []byte) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.states[session] = state
	return nil
}

func (m *memory) end(_ context.Context, session string) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	delete(m.states, session)
	return nil
}
