package acceptance

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// A host is a namespace with an agent's maps and the keeper of its loads.
type host struct {
	t     *testing.T
	space *netspace.Space
	path  *server.Server
	a     *Loads
	fleet model.Fleet
}

func newHost(t *testing.T, by ...model.AcceptLoad) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	h := &host{t: t, space: progtest.NewSpace(t, "s"), fleet: model.Fleet{Keys: model.Keys{Current: 1, Cookie: map[uint32][16]byte{1: {1}}}}}
	var err error
	h.path, err = server.Open(progtest.Pins(t), server.Limits{})
	progtest.Check(t, err)
	t.Cleanup(func() { h.path.Close() })
	for i, load := range by {
		s := model.NewService()
		s.Name, s.VIP, s.Ports, s.Dispatch = fmt.Sprintf("s%d", i), netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)}), []uint16{80, 81}, model.DispatchChoices
		progtest.Check(t, h.space.AddAddress("lo", netip.PrefixFrom(s.VIP, 32)))
		here := model.NewServer()
		here.Name, here.ID, here.Address = "here", 7, netip.MustParseAddr("127.0.0.1")
		s.Servers, s.Choices.Accept.Load = []model.Server{here}, load
		s.Load.Interval = model.Duration(20 * time.Millisecond)
		h.fleet.Services = append(h.fleet.Services, s)
	}
	h.fleet.ApplyDefaults()
	progtest.Check(t, h.space.Do(func() error { h.a = New(h.path, "", slog.New(slog.DiscardHandler)); return nil }))
	return h
}

// begin serves, and keeps the loads until the test ends.
func (h *host) begin() {
	h.t.Helper()
	h.set()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.a.Run(ctx)
	}()
	h.t.Cleanup(func() { cancel(); <-done })
}

func (h *host) set() {
	h.t.Helper()
	wanted, err := plan.NewAgent(&h.fleet, func(*model.Server) bool { return true })
	progtest.Check(h.t, err)
	wanted.Place(h.path.Served())
	_, err = h.path.Serve(wanted.Served)
	progtest.Check(h.t, err)
	progtest.Check(h.t, h.space.Do(func() error { h.a.Set(wanted.Choices); return nil }))
}

// connections is the load of a service by connections, as the data path has it.
func (h *host) connections(acceptance uint16) int64 {
	h.t.Helper()
	live, err := h.path.Live(acceptance)
	progtest.Check(h.t, err)
	word, err := h.path.Load(acceptance)
	progtest.Check(h.t, err)
	return live + int64(int32(word))
}

func (h *host) await(acceptance uint16, want int64) {
	h.t.Helper()
	await.Nil(h.t, "connections are counted", func() error {
		if have := h.connections(acceptance); have != want {
			return fmt.Errorf("%d, want %d", have, want)
		}
		return nil
	})
}

// open makes connections within the host to a listener that it makes.
func (h *host) open(address string, n int) (connections []net.Conn) {
	h.t.Helper()
	progtest.Check(h.t, h.space.Do(func() error {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false)
		listener, err := config.Listen(context.Background(), "tcp", address)
		if err != nil {
			return err
		}
		h.t.Cleanup(func() { listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go func() { // ends with the client
					defer conn.Close()
					io.Copy(io.Discard, conn)
				}()
			}
		}()
		for range n {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				return err
			}
			h.t.Cleanup(func() { conn.Close() })
			connections = append(connections, conn)
		}
		return nil
	}))
	return connections
}

// Connections from before the data path counted are found by the first sweep; whatever it misses later, by the next.
//
// Promise: Counts of connections that drift are corrected every 5 s.
// Also held by TestACorrectionThatMayBeRightStays.
func TestConnectionsThatTheDataPathHasNotSeenAreAdded(t *testing.T) {
	h := newHost(t, model.AcceptByConnections, model.AcceptByConnections)
	h.open("198.51.100.1:80", 3)
	h.begin()
	h.await(1, 3)
	h.open("198.51.100.1:81", 2)
	h.await(1, 5)
	if live, err := h.path.Live(1); err != nil || live != 2 {
		t.Errorf("the data path has counted %d of 2, %v", live, err)
	}
	progtest.Check(t, h.path.IgnoreLive())
	late := h.open("198.51.100.2:80", 4)
	h.await(2, 4) // by a sweep
	progtest.Check(t, late[0].Close())
	h.await(2, 3)
	h.await(1, 5)
}

func TestNothingIsMeasuredWithoutChoices(t *testing.T) {
	h := newHost(t, model.AcceptByConnections)
	services := h.fleet.Services
	for _, c := range []struct {
		services []model.Service
		steps    bool
	}{{nil, false}, {services, true}, {nil, false}} {
		h.fleet.Services = c.services
		h.set()
		if h.a.step(time.Now()) != c.steps {
			t.Errorf("with %d services it goes on: %t", len(c.services), !c.steps)
		}
	}
}

// On a kernel that does not tell of connections.
//
// Promise: Where the kernel does not report the ends of connections, they are counted every 250 ms, and status
// shows a problem.
func TestConnectionsAreCountedByTheSweepAlone(t *testing.T) {
	h := newHost(t, model.AcceptByConnections)
	h.set()
	h.a.alone = true
	progtest.Check(t, h.path.IgnoreLive())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.a.Run(ctx)
	}()
	defer func() { cancel(); <-done }()
	connections := h.open("198.51.100.1:80", 3)
	h.await(1, 3)
	for _, conn := range connections {
		progtest.Check(t, conn.Close())
	}
	h.await(1, 0)
	if problems := h.a.Problems(); len(problems) != 1 || !strings.Contains(problems[0], "s0") {
		t.Errorf("problems %q", problems)
	}
}

// Whatever happens during a count, what is known afterwards is no further from the truth than that, and without haste it is the truth.
func TestACorrectionThatMayBeRightStays(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	live, missing, word := int64(0), int64(0), int32(0) // the truth is live + missing
	for i := range 100000 {
		before := live
		churn := random.Int64N(4)
		if i%3 == 0 {
			churn = 0
		}
		at := before + random.Int64N(churn+1) // when the sockets are listed
		live = before + churn
		if random.IntN(50) == 0 {
			missing = random.Int64N(200) - 100
		}
		truth := at + missing
		if truth < 0 {
			continue
		}
		next := correction(before, live, word, uint32(truth))
		if off := int64(next) - missing; off > churn || off < -churn {
			t.Fatalf("round %d: between %d and %d, %d found: %d becomes %d; what is missing is %d", i, before, live, truth, word, next, missing)
		}
		if int64(word) == missing && next != word {
			t.Fatalf("round %d: between %d and %d, %d found: %d was right and becomes %d", i, before, live, truth, word, next)
		}
		word = next
	}
	if got := correction(-5, -5, 0, math.MaxUint32); got != math.MaxInt32 {
		t.Errorf("more than fits: %d", got)
	}
}

// Promise: After three polls without an application's load, the server accepts only as the last candidate, and
// status shows a problem.
func TestTheApplicationsLoadIsAskedFor(t *testing.T) {
	var answer atomic.Pointer[string]
	say := func(text string) { answer.Store(&text) }
	application := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text := *answer.Load(); text != "" {
			fmt.Fprint(w, text)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer application.Close()
	h := newHost(t, model.AcceptByEndpoint, model.AcceptByCPU)
	h.fleet.Services[0].Load.Endpoint = application.URL
	say("outstanding 11.2")
	h.begin()
	awaitLoad := func(acceptance uint16, want string, right func(uint32) bool) {
		t.Helper()
		await.Nil(t, "a load of "+want, func() error {
			have, err := h.path.Load(acceptance)
			if err == nil && !right(have) {
				err = fmt.Errorf("it is %d", have)
			}
			return err
		})
	}
	awaitLoad(1, "12", func(load uint32) bool { return load == 12 })
	say("cpu 0.355")
	awaitLoad(1, "36", func(load uint32) bool { return load == 36 })
	say("")
	awaitLoad(1, "all", func(load uint32) bool { return load == math.MaxUint32 })
	if problems := h.a.Problems(); len(problems) != 1 || !strings.Contains(problems[0], "s0") {
		t.Errorf("problems %q", problems)
	}
	say("outstanding 0")
	awaitLoad(1, "0", func(load uint32) bool { return load == 0 })
	if problems := h.a.Problems(); len(problems) != 0 {
		t.Errorf("problems %q", problems)
	}
	var idle atomic.Bool
	go func() {
		for !idle.Load() { // keeps a CPU busy
		}
	}()
	defer idle.Store(true)
	awaitLoad(2, "some CPU", func(load uint32) bool { return load > 0 && load <= 200 })
	h.fleet.Services = h.fleet.Services[:1] // what is no longer asked for is not written any more
	h.set()
	progtest.Check(t, h.path.SetLoad(2, 12345))
	say("outstanding 3")
	awaitLoad(1, "3", func(load uint32) bool { return load == 3 })
	awaitLoad(2, "nobody's", func(load uint32) bool { return load == 12345 })
}

// A service whose packets this host sends on needs to know load balancers from others.
//
