// Several controllers whose etcds, one in the process of each, are one cluster.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Peering is how the etcd of one controller speaks to those of the others.
type Peering struct {
	Address              string // host:port that the others reach this controller at
	CA, Certificate, Key string // files in PEM
	// Dial connects to the controller at an address. Whoever answers must prove that it is the controller of that name, and that its
	// certificate names the address and is not revoked; the connection is closed as soon as it is. Empty name: any controller, as the one
	// at that address joins and has told no name yet.
	Dial func(ctx context.Context, name, address string) (net.Conn, error)
	// Serve has requests of the others answered by handler. The caller lets in nobody but controllers.
	Serve func(handler http.Handler)
	// Caller is the name that a request's certificate proves.
	Caller func(r *http.Request) string
	// Join asks the others to add this controller, which has no data, and returns all of them; nil: it is the first of its fleet.
	Join func(ctx context.Context) ([]Peer, error)
	// List asks the others for the members; nil: they are not known. The answer must be linearizable.
	List func(ctx context.Context) ([]Peer, error)
}

// Peer is a member of the cluster.
type Peer struct {
	ID      uint64
	Name    string // empty: it has not started yet
	Address string
	Learner bool // it is catching up, and does not count yet
	Leader  bool
}

// ErrRemoved ends the store of a controller that the others have removed.
var ErrRemoved = errors.New("the other controllers have removed this one: to add it again, empty its --data-dir and start it with --join")

// ErrNotYet is why the cluster does not change now, and may later.
var ErrNotYet = errors.New("the store takes no new controller yet: another one is joining, or one does not answer: remove that with `ballast ctl controller remove`")

// ErrLastQuorum is why a member is not removed.
var ErrLastQuorum = errors.New("the others could not go on without it: too few of them are running: start those, or remove those that are gone first")

const (
	joiningName = "joining" // file in the directory of an etcd whose controller has asked to join, until it counts

	bootstrapAttempts = 5 // of joining, while others join or leave at the same time
	waitingAfter      = 10 * time.Second
	listInterval      = time.Second
	behindEntries     = 1000
)

func urlOf(address string) string { return "https://" + address }

func addressOf(urls []string) string {
	if len(urls) == 0 {
		return ""
	}
	parsed, err := url.Parse(urls[0])
	if err != nil {
		return urls[0]
	}
	return parsed.Host
}

// applyTo makes a member of etcd reachable for others, which the caller serves.
func (p *Peering) applyTo(config *embed.Config) error {
	advertised, err := url.Parse(urlOf(p.Address))
	if err != nil {
		return err
	}
	config.AdvertisePeerUrls = []url.URL{*advertised}
	config.PeerTLSInfo = transport.TLSInfo{TrustedCAFile: p.CA, CertFile: p.Certificate, KeyFile: p.Key}
	config.TlsMinVersion = "TLS1.3"
	return nil
}

// starting is the start of a member.
type starting struct {
	dir      string
	options  EmbedOptions
	stopping *atomic.Bool
	removed  atomic.Bool // the others say so
	known    directory
}

func (s *starting) joining() string { return filepath.Join(s.dir, joiningName) }

// joins reports whether a controller that has no data yet is to ask the others.
func (s *starting) joins() (bool, error) {
	if s.options.Peering == nil || wal.Exist(filepath.Join(s.dir, "member", "wal")) {
		return false, nil
	}
	if s.options.Peering.Join != nil {
		return true, nil
	}
	if _, err := os.Stat(s.joining()); err == nil {
		return false, errors.New("this controller was joining others and has not finished: start it with --join again")
	}
	return false, nil
}

// member starts, joins if it is to, and returns when it counts as a member.
func (s *starting) member(ctx context.Context) (server *embed.Etcd, err error) {
	asked := false
	for attempt := 1; ; attempt++ {
		asks, err := s.joins()
		if err != nil {
			return nil, err
		}
		asked = asked || asks
		server, err = s.once(ctx, asks)
		switch {
		case err == nil:
			return server, nil
		case errors.Is(err, ErrRemoved) && asked: // removed while it joined: it does not come back by itself, nor when it is started again
			return nil, errors.Join(err, os.Remove(s.joining()))
		case errors.Is(err, ErrRemoved) && s.unfinished():
			if err := os.RemoveAll(filepath.Join(s.dir, "member")); err != nil {
				return nil, err
			}
		case !asks || attempt >= bootstrapAttempts || ctx.Err() != nil || errors.As(err, new(*refusedJoin)):
			return nil, err
		}
		s.options.Log.Warn("this controller asks the others again", "error", err)
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// refusedJoin is an answer of the others.
type refusedJoin struct{ error }

func (r *refusedJoin) Unwrap() error { return r.error }

// unfinished: what this member has is only a part of what the others have, and it may join them anew.
func (s *starting) unfinished() bool {
	_, err := os.Stat(s.joining())
	return err == nil && s.options.Peering != nil && s.options.Peering.Join != nil
}

func (s *starting) once(ctx context.Context, asks bool) (*embed.Etcd, error) {
	config, err := memberConfig(s.dir, s.options)
	if err != nil {
		return nil, err
	}
	s.removed.Store(false)
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapTo(s.options.Log, s.stopping, append(endingWith(end{s.options.Log, s.dir, s.options.Ends}), noticing(&s.removed))...))
	if asks {
		if err := os.WriteFile(s.joining(), nil, 0o600); err != nil {
			return nil, err
		}
		peers, err := s.options.Peering.Join(ctx)
		if err != nil {
			return nil, &refusedJoin{err}
		}
		s.known.list.Store(&peers)
		config.ClusterState, config.InitialCluster = embed.ClusterStateFlagExisting, initialCluster(config.Name, s.options.Peering.Address, peers)
	}
	if s.options.Peering != nil {
		config.PeerTLSInfo.DialTLSContext = func(ctx context.Context, _, address string) (net.Conn, error) {
			return s.known.dial(ctx, s.options.Peering, address)
		}
	}
	server, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	s.known.server.Store(server.Server)
	if s.options.Peering != nil {
		s.options.Peering.Serve(s.known.guard(s.options.Peering, s.options.Log, etcdhttp.NewPeerHandler(config.GetLogger(), server.Server)))
	}
	if err = s.ready(ctx, server); err == nil {
		err = s.promoted(ctx, server)
	}
	if err == nil {
		return server, nil
	}
	server.Server.HardStop() // Close waits for servers of clients, which wait until etcd is ready or stops
	server.Close()
	if s.removed.Load() {
		err = ErrRemoved
	}
	return nil, err
}

// nameless begins what members are called here that have told no name yet. No controller's name begins so (pki).
const nameless = "@"

// initialCluster names the members for etcd.
func initialCluster(name, address string, peers []Peer) string {
	var members []string
	for i, p := range peers {
		called := cmp.Or(p.Name, fmt.Sprint(nameless, i))
		if p.Address == address {
			called = name
		}
		members = append(members, called+"="+urlOf(p.Address))
	}
	return strings.Join(members, ",")
}

// ready waits until the member takes part. One by itself does soon, or never; one of several waits for the others.
func (s *starting) ready(ctx context.Context, server *embed.Etcd) error {
	waiting := time.After(waitingAfter)
	listing := time.NewTicker(listInterval)
	defer listing.Stop()
	var late <-chan time.Time
	if len(server.Server.Cluster().Members()) <= 1 {
		late = time.After(startTimeout)
	}
	for {
		select {
		case <-server.Server.ReadyNotify():
			return nil
		case <-server.Server.StopNotify():
			return errors.New("etcd stopped at once: see its messages above")
		case err := <-server.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return fmt.Errorf("etcd was not ready within %v: is the disk slow or full?", startTimeout)
		case <-listing.C:
			if s.removedUnseen(ctx, server) {
				return ErrRemoved
			}
		case <-waiting:
			s.options.Log.Warn("this controller waits for the others: most of them must run", "controllers", voters(server))
		}
	}
}

// removedUnseen reports whether the others have removed this member before they sent it anything. etcd does not find out once it is started
// again: it connects to those alone that it has entries about.
func (s *starting) removedUnseen(ctx context.Context, server *embed.Etcd) bool {
	p := s.options.Peering
	if p == nil || p.List == nil || server.Server.Cluster().Member(server.Server.MemberID()) != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout) // the first that is asked may be this one, which waits itself
	defer cancel()
	members, err := p.List(ctx)
	return err == nil && !slices.ContainsFunc(members, func(m Peer) bool { return m.Address == p.Address })
}

// promoted makes a member that is catching up one that counts, and has it known by its address of now.
func (s *starting) promoted(ctx context.Context, server *embed.Etcd) error {
	id := server.Server.MemberID()
	said := false
	for {
		own := server.Server.Cluster().Member(id) // etcd's IsLearner ends the process where there is none any more
		if own == nil {
			return ErrRemoved
		}
		if !own.IsLearner {
			break
		}
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		_, err := server.Server.PromoteMember(attempt, uint64(id))
		cancel()
		if err == nil {
			break
		}
		if !said {
			said = true
			s.options.Log.Info("this controller catches up with the others", "until", err)
		}
		select {
		case <-time.After(retryPause):
		case <-server.Server.StopNotify():
			return errors.New("etcd stopped while it was catching up: see its messages above")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := os.Remove(s.joining()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// readdress has the others know where this member is now.
func (s *Store) readdress(ctx context.Context, address string) error {
	own := s.member.Server.Cluster().Member(s.member.Server.MemberID())
	if own != nil && slices.Equal(own.PeerURLs, []string{urlOf(address)}) {
		return nil
	}
	return s.call(ctx, callTimeout, func(ctx context.Context) error {
		_, err := s.client.MemberUpdate(ctx, uint64(s.member.Server.MemberID()), []string{urlOf(address)})
		return err
	})
}

// Failed delivers why an etcd in this process has ended by itself.
func (s *Store) Failed() <-chan error { return s.failed }

// PeerNames are the names of the members, of those that are joining as soon as they have told theirs, as far as this one knows. It asks nobody.
func (s *Store) PeerNames() (names []string) {
	for _, m := range s.member.Server.Cluster().Members() {
		if name := realName(m.Name); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// HasPeer reports whether there is a member of that name.
func (s *Store) HasPeer(name string) bool { return slices.Contains(s.PeerNames(), name) }

// Peers returns the members of the cluster, as most of them know it.
func (s *Store) Peers(ctx context.Context) (peers []Peer, err error) {
	err = s.call(ctx, callTimeout, func(ctx context.Context) error {
		found, err := s.client.MemberList(ctx)
		if err != nil {
			return err
		}
		peers = nil
		for _, m := range found.Members {
			peers = append(peers, Peer{ID: m.ID, Name: m.Name, Address: addressOf(m.PeerURLs), Learner: m.IsLearner, Leader: m.ID == uint64(s.member.Server.Leader())})
		}
		return nil
	})
	return peers, err
}

// AddPeer adds a member that is to catch up first.
func (s *Store) AddPeer(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := s.client.MemberAddAsLearner(ctx, []string{urlOf(address)})
	return inPlainWords(err)
}

// RemovePeer removes a member. What would cost the others their majority is refused (ErrLastQuorum).
func (s *Store) RemovePeer(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := s.client.MemberRemove(ctx, id)
	switch {
	case errors.Is(err, rpctypes.ErrMemberNotFound):
		return nil // somebody else was first
	case errors.Is(err, rpctypes.ErrUnhealthy), errors.Is(err, rpctypes.ErrMemberNotEnoughStarted):
		return ErrLastQuorum
	}
	return inPlainWords(err)
}

func inPlainWords(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrTooManyLearners), errors.Is(err, rpctypes.ErrUnhealthy), errors.Is(err, rpctypes.ErrMemberNotEnoughStarted), errors.Is(err, rpctypes.ErrPeerURLExist),
		errors.Is(err, rpctypes.ErrMemberNotFound): // the last: etcd makes the number of a member from its address and the second
		return ErrNotYet
	case unanswered(err):
		return fmt.Errorf("most of the controllers must run for this: %w: %w", err, ErrNotYet)
	}
	return err
}

// PeerCondition is how this controller's etcd stands to the others'.
type PeerCondition struct {
	Alone    bool   // it was to join others, and went on with data of its own and no others
	Members  int    // voters
	Majority bool   // most of them are in touch with each other, and this one with them
	Behind   uint64 // entries that are agreed on and not worked in here
	Forged   uint64 // requests of controllers in another's name, all of them refused
	Forger   string // what to do about it, empty: nothing
}

const joinsNobody = "--join has no effect: this controller has data of its own, and its fleet has no other controller. " +
	"If it is to join others, stop it, move its --data-dir away, and start it again; else start it without --join"

// PeerCondition asks nobody.
func (s *Store) PeerCondition() PeerCondition {
	server := s.member.Server
	c := PeerCondition{Members: voters(s.member), Majority: server.Leader() != 0}
	c.Alone = s.alone && c.Members == 1
	if s.own != nil {
		c.Forged, c.Forger = s.own.known.forged.count(), s.own.known.forged.problem(time.Now())
	}
	if committed, applied := server.CommittedIndex(), server.AppliedIndex(); committed > applied {
		c.Behind = committed - applied
	}
	return c
}

func voters(server *embed.Etcd) (count int) {
	for _, m := range server.Server.Cluster().Members() {
		if !m.IsLearner {
			count++
		}
	}
	return count
}

// Problems says what operators should know of it.
func (c PeerCondition) Problems() (problems []string) {
	if !c.Majority {
		problems = append(problems, fmt.Sprintf("the store has no majority here: %d of %d controllers must run and reach each other; nodes go on as they are", c.Members/2+1, c.Members))
	}
	if c.Alone {
		problems = append(problems, joinsNobody)
	}
	if c.Forger != "" {
		problems = append(problems, c.Forger)
	}
	if c.Behind > behindEntries {
		problems = append(problems, fmt.Sprintf("the store is behind by %d entries here: is the disk slow?", c.Behind))
	}
	if c.Members == 2 {
		problems = append(problems, "the store has two controllers: neither can go on without the other: add a third one")
	}
	return problems
}

// watchEnd tells when etcd ends by itself.
func (s *Store) watchEnd(log *slog.Logger) {
	select {
	case <-s.ctx.Done():
	case <-s.member.Server.StopNotify():
		if s.own.removed.Load() {
			s.failed <- ErrRemoved
			return
		}
		log.Error("the embedded etcd has stopped: the fleet cannot be changed until this controller is restarted", "directory", s.own.dir)
	case err := <-s.member.Err():
		log.Error("the embedded etcd has failed", "directory", s.own.dir, "error", err)
	}
}

// notice is what etcd says when the others have removed it, which it says in its log alone.
const notice = "data-dir used by this member must be removed"

// noticer implements zapcore.Core.
type noticer struct {
	zapcore.Core
	noticed *atomic.Bool
}

func (n *noticer) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

func (n *noticer) With([]zapcore.Field) zapcore.Core { return n }

func (n *noticer) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if entry.Message == notice {
		n.noticed.Store(true)
	}
	return checked
}

// noticing has it noticed.
func noticing(noticed *atomic.Bool) zap.Option {
	return zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewTee(core, &noticer{zapcore.NewNopCore(), noticed})
	})
}
