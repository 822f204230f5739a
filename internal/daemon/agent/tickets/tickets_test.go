package tickets

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/sessionid"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
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

func openTickets(t *testing.T, o Options) *Tickets {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	made, err := New(&o)
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
		made.Set(keys, nil, services, services)
		if len(made.Unwritten) != 0 {
			t.Fatal(made.Unwritten)
		}
		if _, err := sessionticket.Open(made.Path(services[0].Service)); err != nil {
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
		made := openTickets(t, Options{RunDir: filepath.Join(dir, state), StateDir: filepath.Join(dir, state), Instance: "default", Key: key})
		made.Set(keys, nil, services, services)
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
		if _, err := New(&Options{Key: key}); err == nil {
			t.Errorf("%q is taken for a key", text)
		}
	}
}

// fleetTickets are keys of controllers with these epochs of which the first is in use.
func fleetTickets(epochs ...uint32) map[string]rotation.ServiceTickets {
	keys := rotation.ServiceTickets{Current: epochs[0]}
	slices.Sort(epochs)
	for _, epoch := range epochs {
		keys.Keys = append(keys.Keys, rotation.ServiceTicketKey{Epoch: epoch, Secret: rotation.TicketSecret{0xc0, byte(epoch)}, Fingerprint: []byte{byte(epoch), 0, 0, 0, 0, 0, 0, 0}})
	}
	return map[string]rotation.ServiceTickets{"web": keys}
}

func TestKeysOfControllersGoBeforeTheHostsOwnAndAGivenOneBeforeAll(t *testing.T) {
	dir := t.TempDir()
	o := Options{RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), Instance: "default"}
	keys, services := ticketService()
	own := filepath.Join(o.StateDir, "default", "ticket.key")
	made := openTickets(t, o)
	made.Set(keys, fleetTickets(3, 1, 2, 4), services, services)
	path := made.Path(services[0].Service)
	read := func() (file sessionticket.File) {
		t.Helper()
		text, err := os.ReadFile(path)
		if err := errors.Join(err, json.Unmarshal(text, &file)); err != nil {
			t.Fatal(err)
		}
		if _, err := sessionticket.Open(path); err != nil {
			t.Fatal(err)
		}
		return file
	}
	file := read()
	var listed []byte
	for _, key := range file.TicketKeys {
		listed = append(listed, key[1])
	}
	if !bytes.Equal(listed, []byte{3, 4, 2, 1}) || !bytes.Equal(file.TicketKey, file.TicketKeys[0]) || !bytes.Equal(file.TicketKeyBefore, file.TicketKey) || bytes.Equal(file.IDKey, file.IDKeyBefore) {
		t.Errorf("keys of epochs %v, %x first, %x before", listed, []byte(file.TicketKey), []byte(file.TicketKeyBefore))
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
	if _, err := os.Stat(own); !os.IsNotExist(err) {
		t.Errorf("a host that has the fleet's keys makes one of its own: %v", err)
	}
	if r := made.Written(); r.Own || len(r.Fingerprints) != 4 || r.Fingerprints[4][0] != 4 {
		t.Errorf("reported: %+v", r)
	}
	if s := made.Status(); len(s) != 1 || s[0].Source != "controllers" || s[0].Epoch != 3 || !slices.Equal(s[0].Read, []uint32{1, 2, 3, 4}) {
		t.Errorf("status %+v", s)
	}

	made.Set(keys, nil, services, services) // it has left, or these are older controllers
	if file := read(); len(file.TicketKeys) != 0 || bytes.Equal(file.TicketKey, file.TicketKeyBefore) || made.Status()[0].Source != "host" {
		t.Errorf("without keys of controllers: %d", len(file.TicketKeys))
	}
	if info, err := os.Stat(own); err != nil || info.Mode() != 0o600 {
		t.Errorf("the host's own: %v, %v", info, err)
	}
	if r := made.Written(); r.Own || len(r.Fingerprints) != 0 {
		t.Errorf("reported of its own: %+v", r)
	}

	o.Key = filepath.Join(dir, "given.key")
	if err := os.WriteFile(o.Key, bytes.Repeat([]byte("0f"), 32), 0o600); err != nil {
		t.Fatal(err)
	}
	given := openTickets(t, o)
	given.Set(keys, fleetTickets(3, 1), services, services)
	if file := read(); len(file.TicketKeys) != 0 || file.TicketKey[0] == 0xc0 || given.Status()[0].Source != "file" {
		t.Errorf("with --ticket-key: %d keys of controllers", len(file.TicketKeys))
	}
	if r := given.Written(); !r.Own || len(r.Fingerprints) != 0 {
		t.Errorf("reported with --ticket-key: %+v", r)
	}
	for mode, refused := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true, 0o602: true} {
		if err := os.Chmod(o.Key, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := New(&o); (err != nil) != refused || refused && !strings.Contains(err.Error(), "everybody may use") {
			t.Errorf("mode %04o: %v", mode, err)
		}
	}
}

// Of a file that could not be written nobody should think that servers read tickets by it.
func TestKeysAreReportedOnceAllFilesHaveThem(t *testing.T) {
	dir := t.TempDir()
	o := Options{RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), Instance: "default"}
	keys, services := ticketService()
	made := openTickets(t, o)
	blocked := filepath.Join(dir, "run", "tickets")
	if err := errors.Join(os.MkdirAll(filepath.Dir(blocked), 0o755), os.WriteFile(blocked, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if made.Set(keys, fleetTickets(1, 2), services, services); len(made.Written().Fingerprints) != 0 {
		t.Error("reported although nothing is written")
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	if made.Retry(); len(made.Written().Fingerprints) != 2 {
		t.Error("not reported")
	}
	mail := *services[0].Service
	mail.Name = "mail"
	two := append(services, plan.AgentService{Service: &mail, Server: services[0].Server})
	if made.Set(keys, fleetTickets(1, 2), two, two); len(made.Written().Fingerprints) != 0 {
		t.Error("reported although one of two services has none")
	}
	fleet := fleetTickets(1, 2)
	fleet["mail"] = fleetTickets(2, 3)["web"]
	if made.Set(keys, fleet, two, two); len(made.Written().Fingerprints) != 1 || made.Written().Fingerprints[2] == nil {
		t.Errorf("reported %v, both have epoch 2", made.Written())
	}
}

// The listener is named before the kernel refuses anything.
//
// Promise: Hellos for an application that listens with MPTCP are dropped (`ingress_not_taken_over`), and status
// and `doctor` name the listener and the remedy.
// Also held by TestOneFaultIsOneFinding.
func TestListenersThatTakeNothingOverAreNamed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	space, dir := progtest.NewSpace(t, "tickets"), t.TempDir()
	keys, services := ticketService()
	made := openTickets(t, Options{RunDir: dir, StateDir: dir, Instance: "default"})
	made.Set(keys, nil, services, services)
	problems := func(multipath bool) string {
		t.Helper()
		config := net.ListenConfig{}
		config.SetMultipathTCP(multipath)
		progtest.Check(t, space.Do(func() error {
			listener, err := config.Listen(t.Context(), "tcp", ":443")
			if err != nil {
				return err
			}
			made.seeListeners()
			return listener.Close()
		}))
		return strings.Join(made.Problems(), "\n")
	}
	for range 2 {
		if found := problems(true); !strings.Contains(found, "service web: port 443: the listener uses MPTCP") || !strings.Contains(found, "GODEBUG=multipathtcp=0") {
			t.Errorf("a listener with MPTCP: %q", found)
		}
		if found := problems(false); strings.Contains(found, "MPTCP") {
			t.Errorf("one without: %q", found)
		}
	}
}
