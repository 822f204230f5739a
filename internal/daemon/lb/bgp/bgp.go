// Package bgp announces VIPs to routers: it carries out what machine/announce decides, and answers BFD. It takes nothing from routers but that they are there.
package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/carried"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/lb/liveness"
	"github.com/ballast-lb/ballast/internal/linux/bfd"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/machine/announce"
	"github.com/ballast-lb/ballast/internal/model"
)

// Options of New.
type Options struct {
	Tables   *dataplane.Tables
	BFD      *liveness.Responder
	Carried  *carried.Judge
	Save     func() // what is announced has changed
	TookOver bool   // routers may have kept routes of an earlier process, whose data path goes on
	Kept     *Kept  // by it; nil: nothing
	Log      *slog.Logger
}

// Implementation constants.
const (
	period = time.Second      // between two looks at what nobody tells
	grace  = 15 * time.Second // of what was announced before a restart
)

// Announcer is a load balancer's part in BGP. Its methods are safe for concurrent use.
type Announcer struct {
	o    Options
	wake chan struct{}

	mutex       sync.Mutex
	machine     announce.Machine
	speaker     *speaker
	conf        model.BGP // that the speaker follows
	routerID    netip.Addr
	resumed     bool // what was kept is announced again
	problems    []string
	withdrawals uint64

	kept atomic.Pointer[Kept] // for Save, whose caller may hold any lock
}

// Kept is what the next process must know, and who removes the data path.
type Kept struct {
	Announced []netip.Prefix `json:"announced"`
	By        model.BGP      `json:"by"`
}

// New makes one that does nothing yet.
func New(o Options) *Announcer {
	a := &Announcer{o: o, wake: make(chan struct{}, 1)}
	a.kept.Store(o.Kept)
	return a
}

// Kept is for the next process.
func (a *Announcer) Kept() *Kept { return a.kept.Load() }

// save keeps what is announced.
func (a *Announcer) save() {
	var kept *Kept
	if vips := a.machine.Announced(); len(vips) > 0 {
		kept = &Kept{vips, a.conf}
	}
	a.kept.Store(kept)
	a.o.Save()
}

// Wake makes it look at once.
func (a *Announcer) Wake() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Run announces until ctx ends. Routers keep the routes then, as packets go on.
func (a *Announcer) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			a.mutex.Lock()
			defer a.mutex.Unlock()
			if a.speaker != nil {
				a.speaker.end(true)
			}
			return
		case <-timer.C:
		case <-a.wake:
		}
		next := a.look(time.Now())
		timer.Reset(min(period, max(0, time.Until(next))))
	}
}

// look does what has to be done now. next is when it is to be looked again at the latest.
func (a *Announcer) look(now time.Time) (next time.Time) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	next = now.Add(period)
	state := a.o.Tables.Now()
	if !state.Followed {
		return next
	}
	own := state.Own()
	conf := own.BGP
	before := strings.Join(a.problems, "; ")
	a.problems = nil
	if conf.IsZero() {
		a.stop()
		return next
	}
	a.followBFD(&conf)
	at, err := a.follow(now, state, &conf, own.State)
	if err != nil {
		a.problems = append(a.problems, "bgp: "+err.Error())
	}
	if after := strings.Join(a.problems, "; "); after != before && after != "" {
		a.o.Log.Error("BGP is not as wanted", "why", after)
	}
	if !at.IsZero() && at.Before(next) {
		next = at
	}
	return next
}

// stop withdraws all: the load balancer speaks no BGP any more.
func (a *Announcer) stop() {
	if a.speaker != nil {
		a.withdrawals += uint64(len(a.machine.Announced()))
		a.speaker.end(false)
		a.speaker, a.machine, a.conf = nil, announce.Machine{}, model.BGP{}
		a.save()
	}
	if err := a.o.BFD.Routers(nil); err != nil {
		a.problems = append(a.problems, err.Error())
	}
}

func (a *Announcer) follow(now time.Time, state *dataplane.Snapshot, conf *model.BGP, nodeState model.ServerState) (next time.Time, err error) {
	password, err := readPassword(conf.PasswordFile)
	if err != nil {
		return next, err
	}
	restarting := false
	if a.speaker != nil && a.speaker.restarts(conf) {
		a.speaker.end(false)
		a.speaker = nil
	}
	if a.speaker == nil {
		if a.routerID, err = routerID(conf); err != nil {
			return next, err
		}
		if a.speaker, err = startSpeaker(conf, password, a.routerID, a.Wake, a.o.Log); err != nil {
			return next, err
		}
		if restarting = a.o.TookOver && !a.resumed; restarting && a.o.Kept != nil {
			a.machine.Resume(a.o.Kept.Announced, now, now.Add(grace))
		}
		a.resumed = true
		for _, prefix := range a.machine.Announced() {
			if err := a.speaker.set(prefix, true); err != nil {
				return next, err
			}
		}
	}
	actions, next := a.machine.Step(now, a.o.Carried.Wanted(state, conf.Announce == model.AnnounceAlways, time.Duration(conf.Delay), nodeState))
	for _, action := range actions {
		err = errors.Join(err, a.speaker.set(action.VIP, action.Announce))
		if action.Announce {
			a.o.Log.Info("announced", "vip", action.VIP, "why", action.Why)
			continue
		}
		a.withdrawals++
		a.o.Log.Warn("withdrawn", "vip", action.VIP, "why", action.Why)
	}
	if same := a.conf.Equal(conf); len(actions) > 0 || !same {
		a.conf = *conf
		a.save()
	}
	return next, errors.Join(err, a.speaker.follow(conf, password, restarting))
}

// followBFD answers neighbours.
func (a *Announcer) followBFD(conf *model.BGP) {
	var sessions []bfd.Session
	if conf.BFD.Interval != 0 {
		for _, n := range conf.Neighbors {
			sessions = append(sessions, bfd.Session{Neighbor: n.Address, Interval: time.Duration(conf.BFD.Interval), Multiplier: conf.BFD.Multiplier})
		}
	}
	if err := a.o.BFD.Routers(sessions); err != nil {
		a.problems = append(a.problems, err.Error())
	}
}

// routerID is the configured one, or this host's address towards the first neighbour with an IPv4 address.
func routerID(conf *model.BGP) (netip.Addr, error) {
	if conf.RouterID.IsValid() {
		return conf.RouterID.Addr, nil
	}
	for _, n := range conf.Neighbors {
		if !n.Address.Is4() {
			continue
		}
		if hop, _ := netdev.NewResolver().Lookup(n.Address); hop.Source.Is4() {
			return hop.Source, nil
		}
		return netip.Addr{}, fmt.Errorf("no route to neighbour %s: add one, or give router_id", n.Address)
	}
	return netip.Addr{}, errors.New("router_id is missing")
}

// readPassword returns what the first line of a file says. It never shows it.
func readPassword(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return "", fmt.Errorf("read the password: %s: others can read it (mode %04o): chmod 600 %s", path, mode, path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	password, _, _ := strings.Cut(string(content), "\n")
	if len(password) == 0 || len(password) > maxPassword {
		return "", fmt.Errorf("read the password: %s: its first line has %d bytes: use 1 to %d", path, len(password), maxPassword)
	}
	return password, nil
}

const maxPassword = 80 // TCP_MD5SIG_MAXKEYLEN

// CheckPassword is why the password of a file cannot be used, nil: it can, or there is none.
func CheckPassword(path string) error {
	_, err := readPassword(path)
	return err
}
