// Package l2 announces VIPs on a segment by ARP and Neighbor Discovery: it carries out what machine/segment decides.
package l2

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/carried"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	wire "github.com/ballast-lb/ballast/internal/linux/segment"
	"github.com/ballast-lb/ballast/internal/machine/announce"
	"github.com/ballast-lb/ballast/internal/machine/segment"
	"github.com/ballast-lb/ballast/internal/model"
)

// Options of New.
type Options struct {
	Name    string // of this node
	Pins    string // of the instance
	Tables  *dataplane.Tables
	Carried *carried.Judge
	// Receives is why packets for VIPs that come in by a device are not forwarded, nil: they are.
	Receives func(device *net.Interface) error
	Save     func() // what is owned has changed
	Kept     *Kept  // by an earlier process; nil: nothing
	Log      *slog.Logger
}

// Implementation constants.
const (
	period = time.Second      // between two looks at what nobody tells
	grace  = 15 * time.Second // of what was owned before a restart
	// problemLife is more than what is between two advertisements.
	problemLife = 5 * time.Second
	// Notice is what others have to take VIPs that nobody answers for any more, before the data path goes.
	Notice = time.Second
)

// recent is a problem that is reported until it has not come up for a while.
type recent struct {
	why  string
	last time.Time
}

// Kept is what the next process must know.
type Kept struct {
	Peers map[string]segment.MAC `json:"peers"`
	Ours  []netip.Addr           `json:"ours,omitempty"` // VIPs that the fleet has had
}

// Announcer is a load balancer's part. Its methods are safe for concurrent use.
type Announcer struct {
	o     Options
	waker *wire.Waker
	asked atomic.Bool // to look

	mutex    sync.Mutex
	conf     model.L2
	answers  *wire.Answers
	link     *wire.Link // nil: it does not announce, or its device is not there
	machine  *segment.Machine
	able     announce.Machine
	state    *dataplane.Snapshot
	looked   time.Time
	taken    uint64
	ignored  map[string]recent // why advertisements are not believed, by whose they are
	ignoring uint64
	failing  map[string]recent
	problem  string // why nothing is announced, or not all
	lacking  error  // why nothing can be: its device
	unsaved  bool
	until    time.Duration // of wire.Uptime: the data path answers load balancers until then

	kept atomic.Pointer[Kept] // for Save, whose caller may hold any lock
}

// New makes one that does nothing yet.
func New(o Options) (*Announcer, error) {
	waker, err := wire.NewWaker()
	if err != nil {
		return nil, err
	}
	a := &Announcer{o: o, waker: waker, ignored: map[string]recent{}, failing: map[string]recent{}}
	a.kept.Store(o.Kept)
	return a, nil
}

// Kept is for the next process.
func (a *Announcer) Kept() *Kept { return a.kept.Load() }

// Wake makes it look at once.
func (a *Announcer) Wake() {
	a.asked.Store(true)
	a.waker.Wake()
}

// Run announces until ctx ends. What is owned is answered for then, as packets go on.
func (a *Announcer) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, a.Wake)
	defer stop()
	for ctx.Err() == nil {
		link, next, unsaved := a.turn()
		if unsaved {
			a.o.Save()
		}
		a.waker.Wait(link, time.Until(next))
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.close()
	if a.answers != nil {
		a.answers.Close()
		a.answers = nil
	}
}

// close lets go of the device.
func (a *Announcer) close() {
	if a.link != nil {
		a.link.Close()
		a.link = nil
	}
}

// turn does what has to be done now. link: that is to be waited on until next; nil: there is none. unsaved: Kept has changed.
func (a *Announcer) turn() (link *wire.Link, next time.Time, unsaved bool) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	defer func() { unsaved, a.unsaved = a.unsaved, false }()
	now := time.Now()
	if err := a.renew(now); err != nil {
		a.failed(now, err)
	}
	if a.asked.Swap(false) || now.Sub(a.looked) >= period {
		a.looked = now
		before := a.problem
		a.problem = ""
		if err := a.look(now); err != nil {
			a.problem = err.Error()
		}
		if a.problem != before && a.problem != "" {
			a.o.Log.Error("VIPs are not announced on the segment as wanted", "why", a.problem)
		}
	}
	if a.link == nil || a.machine == nil {
		return nil, now.Add(period), false
	}
	frames, err := a.link.Drain()
	if err != nil {
		a.failed(now, err)
		a.close() // it is opened again
		return nil, now.Add(period), false
	}
	now = time.Now()
	keys := &a.state.Running.Keys
	for _, f := range frames {
		if f.VIP.IsValid() {
			a.do(now, a.machine.Answered(now, f.VIP, segment.MAC(f.From)))
			continue
		}
		a.hear(now, f, keys)
	}
	actions, next := a.machine.Step(now)
	a.do(now, actions)
	if slices.ContainsFunc(actions, func(action segment.Action) bool { return action.Kind == segment.Take }) {
		a.keep()
	}
	if look := a.looked.Add(period); look.Before(next) {
		next = look
	}
	return a.link, next, false
}

// hear takes an advertisement, if it is one.
func (a *Announcer) hear(now time.Time, f wire.Frame, keys *model.Keys) {
	advert, err := segment.Parse(f.Payload, keys, now)
	var skew *segment.SkewError
	switch {
	case errors.Is(err, segment.ErrShape):
		return // of another protocol, or of a later version
	case errors.As(err, &skew):
		a.ignored[skew.Name] = recent{err.Error(), now}
	case err != nil:
		a.ignored[f.From.String()] = recent{fmt.Sprintf("advertisements of %s are not believed: %v", f.From, err), now}
	default:
		delete(a.ignored, advert.Name)
		delete(a.ignored, f.From.String())
		a.do(now, a.machine.Heard(now, advert))
		a.keep()
		return
	}
	if a.ignoring++; len(a.ignored) > ignoredMax {
		clear(a.ignored)
	}
}

const ignoredMax = 16 // hosts that are named

// failed notes what could not be done.
func (a *Announcer) failed(now time.Time, err error) {
	if _, known := a.failing[err.Error()]; !known {
		a.o.Log.Error("VIPs are not announced on the segment as wanted", "why", err)
	}
	if len(a.failing) > ignoredMax {
		clear(a.failing)
	}
	a.failing[err.Error()] = recent{err.Error(), now}
}

// look follows the desired state, the device and what can be carried.
func (a *Announcer) look(now time.Time) error {
	state := a.o.Tables.Now()
	if !state.Followed {
		return nil
	}
	a.state = state
	for _, list := range []map[string]recent{a.failing, a.ignored} {
		maps.DeleteFunc(list, func(_ string, p recent) bool { return now.Sub(p.last) > problemLife })
	}
	own := state.Own()
	conf := own.L2
	a.lacking = nil
	if conf.IsZero() {
		return a.stop()
	}
	if a.machine != nil && conf.Interface != a.conf.Interface {
		if err := a.stop(); err != nil {
			return err
		}
	}
	a.conf = conf
	device := a.follow(now)
	a.lacking = device
	if a.machine == nil {
		return device
	}
	wanted := a.o.Carried.Wanted(state, false, time.Duration(conf.Delay), own.State)
	if wanted.Stop == "" && device != nil {
		wanted.Stop = device.Error()
	}
	if a.link != nil {
		for prefix := range wanted.VIPs {
			if why := a.link.Speaks(prefix.Addr()); why != "" {
				wanted.VIPs[prefix] = why
			}
		}
	}
	a.able.Step(now, wanted)
	able := map[netip.Addr]string{}
	for _, s := range a.able.Status() {
		able[s.VIP.Addr()] = s.Why
		if s.Announced {
			able[s.VIP.Addr()] = ""
		}
	}
	a.machine.Forget(now, func(name string) bool { n := state.Running.Node(name); return n != nil && !n.L2.IsZero() })
	how := map[netip.Addr]model.VIPAnnouncement{}
	for vip, of := range state.Running.Announcements() {
		how[vip] = of.How
	}
	a.machine.SetAnnouncements(how)
	a.do(now, a.machine.SetAble(now, able))
	a.keep()
	if device != nil || a.link == nil { // or it is looked for
		return device
	}
	return a.answer(now, able)
}

// follow opens the device, also once more when it is another one by now. An error is why nothing can be announced there.
func (a *Announcer) follow(now time.Time) error {
	device, err := wire.Find(a.conf.Interface)
	switch {
	case err != nil: // it may be there
		a.failed(now, err)
		return nil
	case device == nil:
		a.close()
		return fmt.Errorf("there is no interface %s", a.conf.Interface)
	case device.Flags&net.FlagUp == 0 || device.Flags&net.FlagRunning == 0:
		a.close()
		return fmt.Errorf("interface %s is down", device.Name)
	}
	if a.link != nil && !a.link.Is(device) {
		a.close()
	}
	if a.link == nil {
		if err := a.open(now, device); err != nil {
			return err
		}
	}
	if err := a.answers.Attach(device.Index); err != nil { // somebody may have detached it
		return err
	}
	if err := a.answers.Alone(device.Index); err != nil {
		a.failed(now, err)
	}
	return a.o.Receives(device)
}

func (a *Announcer) open(now time.Time, device *net.Interface) (err error) {
	if a.answers == nil {
		if a.answers, err = wire.OpenAnswers(a.o.Pins); err != nil {
			return err
		}
	}
	if a.link, err = wire.OpenLink(device, segment.EtherType); err != nil {
		return err
	}
	mac := segment.MAC(a.link.Device.HardwareAddr)
	if a.machine != nil {
		a.machine.SetMAC(mac, now)
	} else if err := a.begin(mac, now); err != nil {
		a.close()
		return err
	}
	return nil
}

// answer has the data path know all VIPs as they are, so that the stack of this host does not answer for those of others. What failed before is done again.
func (a *Announcer) answer(now time.Time, able map[netip.Addr]string) error {
	known, err := a.answers.Known()
	if err != nil {
		return err
	}
	mac := segment.MAC(a.link.Device.HardwareAddr)
	err = a.publishPeers()
	for _, v := range a.machine.Status(now) {
		answer, is := known[v.VIP]
		if state := stateOf(v); !is || answer.State != state || state != wire.Other && answer.MAC != mac {
			err = errors.Join(err, a.answers.Set(v.VIP, mac[:], state))
		}
		if v.Owned || v.Held {
			err = errors.Join(err, a.link.Join(v.VIP))
		}
	}
	for vip := range known {
		if _, wanted := able[vip]; !wanted {
			err = errors.Join(err, a.answers.Forget(vip))
		}
	}
	if len(able) > wire.Max {
		err = errors.Join(err, fmt.Errorf("%d VIPs: at most %d can be answered for on a segment", len(able), wire.Max))
	}
	return err
}

// stop leaves all: the load balancer announces nothing on a segment any more.
func (a *Announcer) stop() error {
	if a.machine != nil && a.link != nil {
		now, none := time.Now(), map[netip.Addr]string{}
		for _, s := range a.machine.Status(now) {
			none[s.VIP] = "this load balancer does not announce it any more"
		}
		a.do(now, a.machine.SetAble(now, none))
		a.do(now, []segment.Action{{Kind: segment.Advertise}})
	}
	a.close()
	if a.answers != nil {
		a.answers.Close()
	}
	a.conf, a.answers, a.machine, a.able = model.L2{}, nil, nil, announce.Machine{}
	_, err := wire.Remove(a.o.Pins) // also of an earlier process
	a.keep()
	return err
}

// do carries out what was decided.
func (a *Announcer) do(now time.Time, actions []segment.Action) {
	for _, action := range actions {
		var err error
		switch action.Kind {
		case segment.Take:
			a.taken++
			err = errors.Join(a.answers.Set(action.VIP, a.link.Device.HardwareAddr, wire.Owned), a.link.Join(action.VIP))
			a.o.Log.Info("VIP taken", "vip", action.VIP, "interface", a.conf.Interface, "why", action.Why)
		case segment.Hold:
			err = a.answers.Set(action.VIP, nil, wire.Held)
			a.o.Log.Warn("VIP held", "vip", action.VIP, "interface", a.conf.Interface, "why", action.Why)
		case segment.Leave:
			err = a.answers.Set(action.VIP, nil, wire.Other)
			if a.link != nil {
				err = errors.Join(err, a.link.Leave(action.VIP))
			}
			a.o.Log.Warn("VIP left", "vip", action.VIP, "interface", a.conf.Interface, "why", action.Why)
		case segment.Probe:
			var to net.HardwareAddr
			if action.To != (segment.MAC{}) {
				to = action.To[:]
			}
			if err = a.link.Probe(action.VIP, to); err != nil {
				a.machine.NotSent(action.VIP)
			}
		case segment.Announce:
			err = a.link.Announce(action.VIP)
		case segment.Advertise:
			err = a.advertise(now)
		}
		if err != nil {
			a.failed(now, err)
		}
	}
}

func (a *Announcer) advertise(now time.Time) error {
	if a.link == nil {
		return nil
	}
	for _, advert := range a.machine.Adverts(now, segment.EntriesMax) {
		text, err := advert.Bytes(&a.state.Running.Keys)
		if err == nil {
			err = a.link.Advertise(text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// keep notes whose addresses are those of load balancers, and which VIPs the fleet has had, for the next process. What is owned the data path knows.
func (a *Announcer) keep() {
	var kept *Kept
	if a.machine != nil {
		kept = &Kept{a.machine.Kept(), a.machine.History()}
	}
	before := a.kept.Swap(kept)
	met := (before == nil) != (kept == nil) || before != nil && !maps.Equal(before.Peers, kept.Peers)
	a.unsaved = a.unsaved || met || before != nil && !slices.Equal(before.Ours, kept.Ours)
	if met && kept != nil {
		if err := a.publishPeers(); err != nil {
			a.failed(time.Now(), err)
		}
	}
}

// Withdraw ends what an instance answers for whose data path is about to go: others take it meanwhile.
func Withdraw(ctx context.Context, pins string) error {
	found, err := wire.Remove(pins)
	if !found || err != nil {
		return err
	}
	select {
	case <-time.After(Notice):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("withdraw: %w", context.Cause(ctx))
	}
}
