// Package tickets keeps the files of what applications need to make TLS session tickets that name this host (session tls).
package tickets

import (
	"bytes"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/agent/appfiles"
	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/linux/mptcp"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/pkg/sessionticket"
)

// Options are what tickets are made by.
type Options struct {
	RunDir, StateDir string
	Instance         string
	Group            string // who may read the files; empty: root alone
	Key              string // file with the secret; empty: one of this host's own
	Log              *slog.Logger
}

// Tickets keeps the files of services with session tls.
type Tickets struct {
	*appfiles.Files
	given  bool                               // the secret is that of --ticket-key, which goes before keys of controllers
	fleet  map[string]rotation.ServiceTickets // of controllers, by service
	own    string                             // where the secret of this host alone is kept; empty: it is not, or was read from there
	secret rotation.TicketSecret              // of this host, or of a file: which load balancers do not have, as it decrypts sessions
	unkept string                             // why the secret does not outlive the process
	begun  []plan.AgentService                // whose connections may begin at load balancers
	unable []string                           // why they do not come to be here

	refused uint64 // packets, by the kernel
	lately  time.Time

	multipath []string // listeners that speak MPTCP, for which the kernel takes nothing over
	looked    time.Time
}

// New reads the secret from a file, or with none makes one of this host alone, which it keeps in its state.
func New(o *Options) (*Tickets, error) {
	t := &Tickets{Files: &appfiles.Files{Dir: api.TicketDir(o.RunDir, o.Instance), Content: "session tickets", Log: o.Log}}
	t.Of = func(keys *model.Keys, s *model.Service, server *model.Server) any { return t.file(keys, s, server) }
	if err := t.AllowGroup(o.Group); err != nil {
		return nil, fmt.Errorf("--ticket-group: %w", err)
	}
	if o.Key != "" {
		t.given = true
		return t, t.read(o.Key)
	}
	t.own = filepath.Join(o.StateDir, o.Instance, "ticket.key")
	return t, nil
}

// read takes the secret from a file of hexadecimal digits.
func (t *Tickets) read(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("read the key of session tickets: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return fmt.Errorf("read the key of session tickets: everybody may use %s (mode %04o): make another key, and a file of mode 0600", path, mode)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the key of session tickets: %w", err)
	}
	secret, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(secret) != len(t.secret) {
		return fmt.Errorf("read the key of session tickets: %s has no %d hexadecimal digits: make it by `openssl rand -hex %d`", path, 2*len(t.secret), len(t.secret))
	}
	t.secret = rotation.TicketSecret(secret)
	return nil
}

// makeOwn makes the secret of this host, unless it is kept.
func (t *Tickets) makeOwn() {
	path := t.own
	t.own = ""
	err := t.read(path)
	if err == nil {
		return
	}
	rand.Read(t.secret[:])
	if errors.Is(err, fs.ErrNotExist) {
		err = statefile.Replace(path, []byte(hex.EncodeToString(t.secret[:])+"\n"))
	}
	if err != nil {
		t.unkept = fmt.Sprintf("the key of session tickets is not kept, sessions end with this process: %v", err)
		t.Log.Error(t.unkept)
	}
}

// Set follows the services with sessions, the keys that controllers have given them, and all services whose connections load balancers may begin.
func (t *Tickets) Set(keys *model.Keys, fleet map[string]rotation.ServiceTickets, services, begun []plan.AgentService) {
	t.fleet, t.begun = fleet, begun
	if t.own != "" && slices.ContainsFunc(services, func(s plan.AgentService) bool { return t.source(s.Service) == ticketsOfHost }) {
		t.makeOwn()
	}
	t.Files.Set(keys, services)
	if t.unable = nil; len(begun) == 0 {
		return
	}
	if err := server.TakesOver(); err != nil {
		for _, s := range begun {
			t.unable = append(t.unable, fmt.Sprintf("service %s: %s: %v", s.Service.Name, beginsBy(s.Service), err))
		}
		t.Log.Error("connections that load balancers begin do not come to be at this host", "problems", t.unable)
	}
}

// Implementation constants.
const (
	refusedFor = time.Minute     // how long a refusal is reported
	lookEvery  = 5 * time.Second // at who listens
)

// Observe counts what the kernel has refused since the last time, and sees who listens.
func (t *Tickets) Observe(path *server.Server, now time.Time) {
	if len(t.begun) == 0 {
		t.multipath = nil
		return
	}
	if now.Sub(t.looked) >= lookEvery {
		t.looked = now
		t.seeListeners()
	}
	const notTakenOver = "ingress_not_taken_over"
	counted, err := path.CountersOf(notTakenOver)
	if n := counted[notTakenOver].Packets; err == nil && n > t.refused {
		t.refused, t.lately = n, now
	}
}

// seeListeners names those of the services that speak MPTCP. Where the kernel does not tell, what it refuses does.
func (t *Tickets) seeListeners() {
	before := t.multipath
	t.multipath = nil
	list, err := mptcp.Listeners()
	if err != nil {
		return
	}
	for _, s := range t.begun {
		for _, port := range s.Service.Ports {
			listens := func(vip netip.Addr) bool { return mptcp.ListensAt(list, netip.AddrPortFrom(vip, port)) }
			if slices.ContainsFunc(s.Service.VIPs(), listens) {
				t.multipath = append(t.multipath, fmt.Sprintf("service %s: port %d: %s", s.Service.Name, port, server.RefusesMultipath))
			}
		}
	}
	if len(t.multipath) > 0 && !slices.Equal(before, t.multipath) {
		t.Log.Error("connections that load balancers begin do not come to be at this host", "problems", t.multipath)
	}
}

// beginsBy is the field that has load balancers begin a service's connections.
func beginsBy(s *model.Service) string {
	if s.Session != model.SessionNone {
		return "session " + s.Session.String()
	}
	return "syn_proxy " + s.SYNProxy.String()
}

// Problems are why connections of such services do not come to be.
func (t *Tickets) Problems() []string {
	found := slices.Concat(t.Unwritten, t.unable, t.multipath)
	if t.unkept != "" {
		found = append(found, t.unkept)
	}
	if len(t.unable)+len(t.multipath) == 0 && !t.lately.IsZero() && time.Since(t.lately) < refusedFor {
		found = append(found, fmt.Sprintf("session tls or syn_proxy: the kernel has refused %d first packets of connections, also within the last minute: most likely %s", t.refused, server.RefusesMultipath))
	}
	return found
}

// Where the keys of a service's tickets are from: api.TicketKeys.Source.
const (
	ticketsOfFleet = "controllers"
	ticketsOfFile  = "file"
	ticketsOfHost  = "host"
)

func (t *Tickets) source(s *model.Service) string {
	if t.given {
		return ticketsOfFile
	}
	if _, known := t.fleet[s.Name]; known {
		return ticketsOfFleet
	}
	return ticketsOfHost
}

// file is what a server needs to know of the epoch of cookies that is written, and of the other one.
func (t *Tickets) file(keys *model.Keys, s *model.Service, server *model.Server) *sessionticket.File {
	file := &sessionticket.File{Service: s.Name, ServerID: server.ID}
	ofFleet := t.source(s) == ticketsOfFleet
	if ofFleet {
		file.TicketKeys = secretsOf(t.fleet[s.Name])
	}
	for epoch, fleet := range keys.Cookie {
		id := cookie.Derive(fleet, cookie.ForSessionIDs, s.VIP, 0, 32)
		var ticket sessionticket.Secret
		if ofFleet {
			ticket = file.TicketKeys[0]
		} else {
			derived, err := hkdf.Key(sha256.New, t.secret[:], nil, fmt.Sprintf("ballast session tickets of %s %d", s.Name, epoch), 32)
			if err != nil {
				panic(err) // of a length that no hash has
			}
			ticket = derived
		}
		if epoch == keys.Current {
			file.IDKey, file.TicketKey = id, ticket
		} else {
			file.IDKeyBefore, file.TicketKeyBefore = id, ticket
		}
	}
	return file
}

// secretsOf lists the keys of controllers: the one in use first, then the others, the newest first.
func secretsOf(keys rotation.ServiceTickets) (secrets []sessionticket.Secret) {
	for _, k := range slices.Backward(keys.Keys) {
		if k.Epoch == keys.Current {
			secrets = slices.Insert(secrets, 0, sessionticket.Secret(k.Secret[:]))
		} else {
			secrets = append(secrets, k.Secret[:])
		}
	}
	return secrets
}

// Report is by which keys of controllers applications of all services read tickets.
type Report struct {
	Fingerprints map[uint32][]byte // by epoch
	Own          bool              // others were given
}

// Equal compares.
func (r *Report) Equal(other *Report) bool {
	return r.Own == other.Own && maps.EqualFunc(r.Fingerprints, other.Fingerprints, bytes.Equal)
}

// Written is by which keys the files have applications read tickets, if they are written.
func (t *Tickets) Written() (r Report) {
	if r.Own = t.given; t.given || len(t.Unwritten) > 0 {
		return r
	}
	for i, s := range t.Services {
		fingerprints := map[uint32][]byte{}
		for _, k := range t.fleet[s.Service.Name].Keys {
			if i == 0 || bytes.Equal(r.Fingerprints[k.Epoch], k.Fingerprint) {
				fingerprints[k.Epoch] = k.Fingerprint
			}
		}
		r.Fingerprints = fingerprints
	}
	return r
}

// Status returns which keys each service has.
func (t *Tickets) Status() (list []api.TicketKeys) {
	for _, s := range t.Services {
		keys := api.TicketKeys{Service: s.Service.Name, Source: t.source(s.Service)}
		if keys.Source == ticketsOfFleet {
			keys.Epoch = t.fleet[keys.Service].Current
			for _, k := range t.fleet[keys.Service].Keys {
				keys.Read = append(keys.Read, k.Epoch)
			}
		}
		list = append(list, keys)
	}
	return list
}
