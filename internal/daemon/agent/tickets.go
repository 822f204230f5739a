// What applications need to make TLS session tickets that name this host (session tls).
package agent

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/linux/mptcp"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/pkg/sessionticket"
)

// tickets keeps the files of services with session tls.
type tickets struct {
	*files
	own    string             // where the secret of this host alone is kept; empty: it is not, or is another one
	secret [ticketSecret]byte // which load balancers do not have: it decrypts sessions
	unkept string             // why the secret does not outlive the process
	unable []string           // why connections of such services do not come to be here

	refused uint64 // packets, by the kernel
	lately  time.Time

	multipath []string // listeners that speak MPTCP, for which the kernel takes nothing over
	looked    time.Time
}

const ticketSecret = 32 // bytes

// newTickets reads the secret from a file, or with none makes one of this host alone, which it keeps in its state.
func newTickets(o *Options) (*tickets, error) {
	t := &tickets{files: &files{dir: api.TicketDir(o.RunDir, o.Instance), content: "session tickets", log: o.Log}}
	t.of = func(keys *model.Keys, s *model.Service, server *model.Server) any { return t.file(keys, s, server) }
	if err := t.allowGroup(o.TicketGroup); err != nil {
		return nil, fmt.Errorf("--ticket-group: %w", err)
	}
	if o.TicketKey != "" {
		return t, t.read(o.TicketKey)
	}
	t.own = filepath.Join(o.StateDir, o.Instance, "ticket.key")
	return t, nil
}

// read takes the secret from a file of hexadecimal digits.
func (t *tickets) read(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the key of session tickets: %w", err)
	}
	secret, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(secret) != ticketSecret {
		return fmt.Errorf("read the key of session tickets: %s has no %d hexadecimal digits: make it by `openssl rand -hex %d`", path, 2*ticketSecret, ticketSecret)
	}
	t.secret = [ticketSecret]byte(secret)
	return nil
}

// makeOwn makes the secret of this host, unless it is kept.
func (t *tickets) makeOwn() {
	path := t.own
	t.own = ""
	err := t.read(path)
	if err == nil {
		return
	}
	rand.Read(t.secret[:])
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = statefile.WriteDurably(path+".new", []byte(hex.EncodeToString(t.secret[:])+"\n"))
		}
		if err == nil {
			err = os.Rename(path+".new", path)
		}
	}
	if err != nil {
		t.unkept = fmt.Sprintf("the key of session tickets is not kept, sessions end with this process: %v", err)
		t.log.Error(t.unkept)
	}
}

// set follows the services.
func (t *tickets) set(keys *model.Keys, services []plan.AgentService) {
	if t.own != "" && len(services) > 0 {
		t.makeOwn()
	}
	t.files.set(keys, services)
	if t.unable = nil; len(services) == 0 {
		return
	}
	if err := server.TakesOver(); err != nil {
		for _, s := range services {
			t.unable = append(t.unable, fmt.Sprintf("service %s: session tls: %v", s.Service.Name, err))
		}
		t.log.Error("connections of services with session tls do not come to be at this host", "problems", t.unable)
	}
}

// Implementation constants.
const (
	refusedFor = time.Minute     // how long a refusal is told of
	lookEvery  = 5 * time.Second // at who listens
)

// look counts what the kernel has refused since the last time, and sees who listens.
func (t *tickets) look(path *server.Server, now time.Time) {
	if len(t.services) == 0 {
		t.multipath = nil
		return
	}
	if now.Sub(t.looked) >= lookEvery {
		t.looked = now
		t.seeListeners()
	}
	counted, err := path.Counters()
	if n := counted["ingress_not_taken_over"].Packets; err == nil && n > t.refused {
		t.refused, t.lately = n, now
	}
}

// seeListeners names those of the services that speak MPTCP. Where the kernel does not tell, what it refuses does.
func (t *tickets) seeListeners() {
	before := t.multipath
	t.multipath = nil
	list, err := mptcp.Listeners()
	if err != nil {
		return
	}
	for _, s := range t.services {
		for _, port := range s.Service.Ports {
			if mptcp.ListensAt(list, netip.AddrPortFrom(s.Service.VIP, port)) {
				t.multipath = append(t.multipath, fmt.Sprintf("service %s: port %d: %s", s.Service.Name, port, server.RefusesMultipath))
			}
		}
	}
	if len(t.multipath) > 0 && !slices.Equal(before, t.multipath) {
		t.log.Error("connections of services with session tls do not come to be at this host", "problems", t.multipath)
	}
}

// problems are why connections of such services do not come to be.
func (t *tickets) problems() []string {
	found := slices.Concat(t.unwritten, t.unable, t.multipath)
	if t.unkept != "" {
		found = append(found, t.unkept)
	}
	if len(t.unable)+len(t.multipath) == 0 && !t.lately.IsZero() && time.Since(t.lately) < refusedFor {
		found = append(found, fmt.Sprintf("session tls: the kernel has refused %d first packets of connections, also within the last minute: most likely %s", t.refused, server.RefusesMultipath))
	}
	return found
}

// file is what a server needs to know of the epoch that is written, and of the other one.
func (t *tickets) file(keys *model.Keys, s *model.Service, server *model.Server) *sessionticket.File {
	file := &sessionticket.File{Service: s.Name, ServerID: server.ID}
	for epoch, fleet := range keys.Cookie {
		id := cookie.Derive(fleet, cookie.ForSessionIDs, s.VIP, 0, 32)
		ticket, err := hkdf.Key(sha256.New, t.secret[:], nil, fmt.Sprintf("ballast session tickets of %s %d", s.Name, epoch), 32)
		if err != nil {
			panic(err) // of a length that no hash has
		}
		if epoch == keys.Current {
			file.IDKey, file.TicketKey = id, ticket
		} else {
			file.IDKeyBefore, file.TicketKeyBefore = id, ticket
		}
	}
	return file
}
