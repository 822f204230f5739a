// What this host serves: the file or the controllers' state that it runs by, and what follows it.
package agent

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/agent/desired"
	"github.com/ballast-lb/ballast/internal/daemon/agent/programs"
	"github.com/ballast-lb/ballast/internal/daemon/agent/serving"
	"github.com/ballast-lb/ballast/internal/daemon/agent/tunnels"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/daemon/devices"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/linux/untracked"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
)

// reconciler takes one change at a time.
type reconciler struct {
	log         *slog.Logger
	configPath  string // of the file that it runs by; empty: by controllers
	credentials *pki.Credentials

	instance string
	path     *server.Server

	serving  serving.Serving
	programs programs.Programs
	features features
	tunnels  *guarded[*tunnels.Tunnels]

	desired  desired.State // of controllers
	file     api.Config
	known    bool      // what this host serves, by a file or a controller
	judged   time.Time // when it was looked last whether something translates addresses
	waiting  bool      // for that, with a data path of an earlier process
	receives *ballastv1.Receiver
	unnamed  bool // a controller that it asked then knows no service that this host is a server of
}

// firstFile is what the host starts with: its file, or the last state of controllers.
func (r *reconciler) firstFile(t *tunnels.Tunnels) (file *config.File, err error) {
	if r.configPath != "" {
		r.known = true
		return configfile.Load(r.configPath, r.log)
	}
	found, kept, err := r.desired.Load()
	if err != nil {
		return nil, err
	}
	t.Restore(kept)
	r.known = found // if there is none, when a controller has sent it
	return r.desired.File("the last state"), nil
}

// start fills the maps first and attaches last. pinned: an earlier process has left some.
func (r *reconciler) start(file *config.File, pinned bool) (err error) {
	if err = r.serving.TakeOverStops(); err == nil && r.known {
		file = r.refuseAtStart(file)
	}
	if r.known {
		err = errors.Join(err, r.apply(file))
	} else { // it is not known yet what this host serves
		r.serving.Assume(file)
		if r.waiting = pinned; pinned && err == nil { // what an earlier process left is left unchanged, and whose tunnels are taken
			r.tunnels.Do((*tunnels.Tunnels).LeaveUntouched)
			if r.configPath == "" {
				r.log.Warn("no state is known: what an earlier process left is left unchanged until a controller says what this host serves", "file", r.desired.Saved.Path)
			}
			return nil
		}
		err = errors.Join(err, r.limitTunnels())
	}
	if err == nil {
		err = devices.WhileBusy(r.log, devices.BusyPatience, func() error { return r.programs.Attach(r.serving.Addresses()) })
	}
	if err == nil {
		r.followExits(time.Now()) // before links that nobody asked for are dropped
		err = r.path.Attached()
	}
	return err
}

// followExits makes the devices that packets are handed on by accept the program's frames.
func (r *reconciler) followExits(now time.Time) {
	r.programs.Exits.Follow(r.serving.HandsOnBy(), r.programs.Running(), now)
}

// refuseAtStart returns the file, or the last state of controllers, that an agent begins with. One that would give living connections another
// cookie is refused: nothing is served by it, and what an earlier process left is left unchanged until the file is in order, or taken by
// force, or a controller says what this host serves.
func (r *reconciler) refuseAtStart(file *config.File) *config.File {
	err := r.serving.KeepsCookies(file, false)
	if err == nil {
		return file
	}
	r.known, r.file.Path = false, file.Path
	if r.configPath != "" {
		err = configfile.ByForce(err, r.instance, "reload")
	}
	configfile.Note(&r.file, "", err, r.log)
	return &config.File{Path: file.Path}
}

// apply makes the maps follow a file.
func (r *reconciler) apply(file *config.File) error {
	changed, err := r.serving.Apply(file)
	if err != nil {
		return err
	}
	if err := r.limitTunnels(); err != nil {
		return err
	}
	r.features.set(&r.serving, r.desired.Tickets, changed)
	r.file = api.Config{Path: file.Path, SHA256: file.SHA256}
	return r.follow()
}

func (r *reconciler) limitTunnels() (err error) {
	r.tunnels.Do(func(t *tunnels.Tunnels) { err = t.SetFile(r.serving.Applied.Fleet.TunnelsFrom) })
	return err
}

// follow brings what depends on the host's network up to date.
func (r *reconciler) follow() error {
	local, err := netdev.LocalAddresses()
	if err == nil {
		err = r.serving.Follow(local)
	}
	r.followExits(time.Now())
	if err == nil {
		r.serving.Diagnose(local, r.programs.Unmarked)
		r.setProbes(time.Now())
		r.receives = programs.Receiver(r.programs.Interfaces, r.serving.Addresses())
	}
	r.features.load.Set(r.serving.Countable(), r.serving.Interval)
	r.features.tracked.Set(r.serving.Wanted.Begun, r.serving.Absent)
	return err
}

// translationPeriod is how often it is looked whether something translates addresses.
const translationPeriod = 30 * time.Second

// setProbes has the services probed whose address this host does not have.
func (r *reconciler) setProbes(now time.Time) {
	translates := ""
	if r.serving.IPVS {
		translates = "IPVS"
	} else if len(r.serving.Absent) > 0 {
		var err error
		if translates, err = untracked.Translation(); err != nil {
			translates = err.Error() // something may
		}
	}
	r.judged = now
	r.features.probes.Set(r.serving.Wanted.Direct, r.serving.Absent, translates)
}

// probe sends probes and sees what became of them.
func (r *reconciler) probe(now time.Time) {
	if len(r.serving.Absent) == 0 {
		return
	}
	if now.Sub(r.judged) >= translationPeriod {
		r.setProbes(now)
	}
	var balancers []netip.Addr
	r.tunnels.Do(func(t *tunnels.Tunnels) { balancers = t.From() })
	r.features.probes.Look(now, r.programs.On, balancers)
}

// attachLate attaches what may have had to wait until it was known what this host serves. Where it fails it wants to be called again.
func (r *reconciler) attachLate() {
	r.known = true
	err := r.programs.Attach(r.serving.Addresses())
	r.followExits(time.Now())
	if err == nil && r.waiting {
		err = r.path.Attached()
	}
	if r.programs.Note(err); err == nil {
		r.waiting = false
	}
}

// reload applies a configuration file that was read, if it was; one that cannot be applied is refused and the old state is kept. By force
// it is taken although living connections lose their server. It returns what changed, or would.
func (r *reconciler) reload(file *config.File, err error, how configfile.Taking) (changed api.Changed, _ error) {
	refused := r.file.Error
	if err == nil && !how.Force {
		if err = r.serving.KeepsCookies(file, r.known); err != nil {
			err = configfile.ByForce(err, r.instance, "reload")
		}
	}
	if err == nil && r.known {
		changed.Warnings = r.serving.Losses(file)
		if err = how.Whole(changed.Warnings, r.instance); err != nil {
			err = fmt.Errorf("%s: %w", file.Path, err)
		}
	}
	if how.DryRun {
		if err == nil {
			changed.Changes, err = r.serving.Foresee(file)
		}
		return changed, err
	}
	if changed.Warnings = nil; err == nil {
		generation := r.serving.Generation
		if err = r.apply(file); r.serving.Generation != generation {
			changed.Changes = append(changed.Changes, fmt.Sprintf("serves %s", cmp.Or(strings.Join(r.serving.Names(), ", "), "nothing")))
		}
	}
	if err == nil && !r.known {
		r.attachLate()
	}
	configfile.Note(&r.file, refused, err, r.log)
	return changed, err
}

// adopt applies a controller's state, or keeps the old one.
func (r *reconciler) adopt(controller string, state *ballastv1.State) error {
	if r.unnamed = nodeclient.KnowsNothing(state); r.waiting && r.unnamed {
		return nodeclient.ErrKnowsNothing
	}
	before, tickets := r.desired.Node, r.desired.Tickets
	next, err := nodeclient.State{Desired: before, Tickets: tickets}.After(state)
	if err == nil {
		r.desired.Node, r.desired.Tickets = next.Desired, next.Tickets
		err = r.applyDesired(controller)
	}
	if err != nil {
		r.desired.Node, r.desired.Tickets = before, tickets
		r.file.Refuse(fmt.Sprintf("state %d of controller %s: %s", state.Revision, controller, err), time.Now())
		return err
	}
	r.desired.Revision = state.Revision
	r.save()
	r.attachLate()
	return nil
}

// applyDesired makes the maps follow a controller's state. What an earlier process left by a file may be of another fleet.
func (r *reconciler) applyDesired(controller string) error {
	file := r.desired.File("controller " + controller)
	if r.waiting {
		if err := r.serving.KeepsCookies(file, false); err != nil {
			return fmt.Errorf("%w; give controllers the keys and ids that this host runs by (`ballast ctl apply` of its file); if its connections may break: stop "+
				"the agent, `ballast agent --detach --instance %s`, and start it again", err, r.instance)
		}
	}
	return r.apply(file)
}

// save keeps what controllers have this host serve.
func (r *reconciler) save() {
	r.tunnels.Do(func(t *tunnels.Tunnels) { r.desired.Save(t.Kept()) })
}

func (r *reconciler) checkDevices(now time.Time) {
	r.programs.Look(now)
	if err := r.path.FollowClock(); err != nil { // connections are taken over before this host knows of sessions
		r.log.Error("cannot read the offset of CLOCK_TAI", "error", err)
	}
	if r.known {
		r.features.follow(now)
		r.probe(now)
	}
	if r.programs.Unattached != "" && r.known {
		r.attachLate()
	}
	r.followExits(now)
}

// networkChanged applies the file again when other server entries may be this host now.
func (r *reconciler) networkChanged() {
	r.programs.Look(time.Now())
	if !r.known { // see start
		return
	}
	local, err := netdev.LocalAddresses()
	if err == nil && r.serving.Moved(local) {
		before := r.file
		err = r.apply(r.serving.Applied)
		r.file = before
	}
	r.attachLate()
	r.features.joins.Follow()
	if err := errors.Join(err, r.follow()); err != nil {
		r.log.Error("services, addresses and next hops not updated", "error", err)
	}
}
