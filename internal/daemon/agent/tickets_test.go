package agent

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/sessionid"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/pkg/sessionticket"
)

var ticketVIP = netip.MustParseAddr("198.51.100.10")

func ticketService() (*model.Keys, []plan.AgentService) {
	keys := &model.Keys{Placement: [16]byte{1}, Current: 2, Cookie: map[uint32][16]byte{1: {11}, 2: {12}}}
	s := model.NewService()
	s.Name, s.VIP, s.Ports, s.Session = "web", ticketVIP, []uint16{443}, model.SessionTLS
	s.Servers = []model.Server{{Name: "s7", ID: 7}}
	s.ApplyDefaults()
	return keys, []plan.AgentService{{Service: &s, Server: &s.Servers[0]}}
}

func openTickets(t *testing.T, o Options) *tickets {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	made, err := newTickets(&o)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestApplicationsFindWhatTicketsAreMadeOfInAFile(t *testing.T) {
	dir := t.TempDir()
	o := Options{RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), Instance: "default"}
	keys, services := ticketService()
	read := func() *sessionticket.File {
		t.Helper()
		made := openTickets(t, o)
		made.set(keys, services)
		if len(made.unwritten) != 0 {
			t.Fatal(made.unwritten)
		}
		if _, err := sessionticket.Open(made.path(services[0].Service)); err != nil {
			t.Fatal(err)
		}
		return made.file(keys, services[0].Service, services[0].Server)
	}
	first := read()
	name := sessionid.Seal(plan.SessionIDKey(keys.Cookie[2], ticketVIP), 5, 7)
	if id, ok := sessionid.Open(sessionid.Load([32]byte(first.IDKey)), name); !ok || id != 7 || first.ServerID != 7 {
		t.Errorf("load balancers read server %d of the tickets of server %d", id, first.ServerID)
	}
	if again := read(); !bytes.Equal(again.TicketKey, first.TicketKey) {
		t.Error("a process that starts again cannot read the tickets of the one before")
	}
	if info, err := os.Stat(filepath.Join(o.StateDir, "default", "ticket.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
	keys.Current = 1
	if other := read(); !bytes.Equal(other.TicketKeyBefore, first.TicketKey) || !bytes.Equal(other.IDKeyBefore, first.IDKey) {
		t.Error("tickets of the other epoch cannot be read")
	}
}

func TestServersWithOneKeyReadEachOthersTickets(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "ticket.key")
	if err := os.WriteFile(key, bytes.Repeat([]byte("0f"), 32), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, services := ticketService()
	file := func(state, key string) *sessionticket.File {
		made := openTickets(t, Options{RunDir: filepath.Join(dir, state), StateDir: filepath.Join(dir, state), Instance: "default", TicketKey: key})
		made.set(keys, services)
		return made.file(keys, services[0].Service, services[0].Server)
	}
	if !bytes.Equal(file("a", key).TicketKey, file("b", key).TicketKey) {
		t.Error("one key, and two of tickets")
	}
	if bytes.Equal(file("c", "").TicketKey, file("d", "").TicketKey) {
		t.Error("hosts that share nothing have one key")
	}
	for _, text := range []string{"", "0f0f", "not hexadecimal"} {
		if err := os.WriteFile(key, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := newTickets(&Options{TicketKey: key}); err == nil {
			t.Errorf("%q is taken for a key", text)
		}
	}
}

// The listener is named before the kernel refuses anything.
func TestListenersThatTakeNothingOverAreNamed(t *testing.T) {
	h := newJoinHost(t)
	keys, services := ticketService()
	made := openTickets(t, Options{RunDir: h.dir, StateDir: h.dir, Instance: "default"})
	made.set(keys, services)
	problems := func(multipath bool) string {
		t.Helper()
		config := net.ListenConfig{}
		config.SetMultipathTCP(multipath)
		h.do(func() error {
			listener, err := config.Listen(t.Context(), "tcp", ":443")
			if err != nil {
				return err
			}
			made.seeListeners()
			return listener.Close()
		})
		return strings.Join(made.problems(), "\n")
	}
	for range 2 {
		if found := problems(true); !strings.Contains(found, "service web: port 443: the listener speaks MPTCP") || !strings.Contains(found, "GODEBUG=multipathtcp=0") {
			t.Errorf("a listener with MPTCP: %q", found)
		}
		if found := problems(false); strings.Contains(found, "MPTCP") {
			t.Errorf("one without: %q", found)
		}
	}
}
