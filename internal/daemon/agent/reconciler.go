// What this host serves: the file or the controllers' state that it runs by, and whether maps and devices are as that says.
package agent

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/daemon/devices"
	"github.com/ballast-lb/ballast/internal/daemon/guarded"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
)

// reconciler takes one change at a time.
type reconciler struct {
	log         *slog.Logger
	configPath  string // of the file that it runs by; empty: by controllers
	credentials *pki.Credentials

	serving  serving
	programs programs
	desired  desired
	file     api.Config
	known    bool // what this host serves, by a file or a controller
	waiting  bool // for that, with a data path of an earlier process
	receives *ballastv1.Receiver
	unnamed  bool // a controller that it asked then knows no service that this host is a server of

	keys    *keyReporter
	load    *loadReporter
	accepts *acceptor
	ids     *files
	tickets *tickets
	joins   *joins
	tracked *tracking
	tunnels *guarded.Value[*tunnels]
}

// firstFile is what the host starts with: its file, or what controllers last said.
func (r *reconciler) firstFile(t *tunnels) (file *config.File, err error) {
	if r.configPath != "" {
		r.known = true
		return configfile.Load(r.configPath, r.log)
	}
	r.known, err = r.desired.load(t) // if there is none, when a controller has spoken
	return r.desired.file("the last state"), err
}

// start fills the maps first and attaches last. pinned: an earlier process has left some.
func (r *reconciler) start(file *config.File, pinned bool) (err error) {
	if err = r.serving.takeOverStops(); err == nil && r.known {
		file = r.refuseAtStart(file)
	}
	if r.known {
		err = errors.Join(err, r.apply(file))
	} else { // nobody has said yet what this host serves
		r.serving.applied = file
		if r.waiting = pinned; pinned && err == nil { // what an earlier process left goes on untouched, and whose tunnels are taken
			r.tunnels.Do(func(t *tunnels) { t.untouched = true })
			if r.configPath == "" {
				r.log.Warn("no state is known: what an earlier process left goes on untouched until a controller says what this host serves", "file", r.desired.kept.Path)
			}
			return nil
		}
		err = errors.Join(err, r.limitTunnels())
	}
	if err == nil {
		err = devices.WhileBusy(r.log, devices.BusyPatience, func() error { return r.programs.attach(r.serving.addresses()) })
	}
	if err == nil {
		r.followExits(time.Now()) // before links that nobody asked for are dropped
		err = r.serving.path.Attached()
	}
	return err
}

// followExits makes the devices that packets are handed on by accept the program's frames.
func (r *reconciler) followExits(now time.Time) {
	r.programs.exits.Follow(r.serving.handsOnBy(), r.programs.Running(), now)
}

// refuseAtStart returns the file, or the last state of controllers, that an agent begins with. One that would give living connections another
// cookie is refused: nothing is served by it, and what an earlier process left goes on untouched until the file is in order, or taken by
// force, or a controller says what this host serves.
func (r *reconciler) refuseAtStart(file *config.File) *config.File {
	err := r.serving.keepsCookies(file, false)
	if err == nil {
		return file
	}
	r.known, r.file.Path = false, file.Path
	if r.configPath != "" {
		err = configfile.ByForce(err, r.serving.instance, "reload")
	}
	configfile.Note(&r.file, "", err, r.log)
	return &config.File{Path: file.Path}
}

// apply makes the maps follow a file.
func (r *reconciler) apply(file *config.File) error {
	changed, err := r.serving.apply(file)
	if err != nil {
		return err
	}
	if err := r.limitTunnels(); err != nil {
		return err
	}
	r.load.SetServices(r.serving.counted)
	r.accepts.set(r.serving.wanted.Choices)
	r.ids.set(&file.Fleet.Keys, r.serving.wanted.QUIC)
	r.tickets.set(&file.Fleet.Keys, r.desired.tickets, r.serving.wanted.Sessions)
	r.joins.set(r.serving.wanted.Joins)
	r.tracked.set(r.serving.wanted.Sessions)
	r.load.period.Store(int64(r.serving.interval))
	r.file = api.Config{Path: file.Path, SHA256: file.SHA256}
	r.keys.set(&file.Fleet.Keys, changed)
	r.keys.setTickets(r.tickets.written())
	return r.follow()
}

func (r *reconciler) limitTunnels() (err error) {
	r.tunnels.Do(func(t *tunnels) {
		t.inFile, t.untouched = r.serving.applied.Fleet.TunnelsFrom, false
		err = t.apply()
	})
	return err
}

// follow brings what depends on the host's network up to date.
func (r *reconciler) follow() error {
	local, err := netdev.LocalAddresses()
	if err == nil {
		err = r.serving.follow(local)
	}
	r.followExits(time.Now())
	if err == nil {
		r.serving.diagnose(local, r.programs.unmarked)
		r.receives = receiver(r.programs.interfaces, r.serving.addresses())
	}
	return err
}

// attachLate attaches what may have had to wait until it was known what this host serves. Where it fails it wants to be called again.
func (r *reconciler) attachLate() {
	r.known = true
	err := r.programs.attach(r.serving.addresses())
	r.followExits(time.Now())
	if err == nil && r.waiting {
		err = r.serving.path.Attached()
	}
	if r.programs.note(err); err == nil {
		r.waiting = false
	}
}

// reload applies a configuration file that was read, if it was; one that cannot be applied is refused and the old state goes on. By force
// it is taken although living connections lose their server. It returns what changed, a line each.
func (r *reconciler) reload(file *config.File, err error, force bool) (changes []string, _ error) {
	refused := r.file.Error
	if err == nil && !force {
		if err = r.serving.keepsCookies(file, r.known); err != nil {
			err = configfile.ByForce(err, r.serving.instance, "reload")
		}
	}
	if err == nil {
		generation := r.serving.generation
		if err = r.apply(file); r.serving.generation != generation {
			changes = append(changes, fmt.Sprintf("serves %s", cmp.Or(strings.Join(r.serving.names(), ", "), "nothing")))
		}
	}
	if err == nil && !r.known {
		r.attachLate()
	}
	configfile.Note(&r.file, refused, err, r.log)
	return changes, err
}

// adopt carries a controller's state out, or goes on with the old one.
func (r *reconciler) adopt(controller string, state *ballastv1.State) error {
	if r.unnamed = nodeclient.KnowsNothing(state); r.waiting && r.unnamed {
		return nodeclient.ErrKnowsNothing
	}
	before, tickets := r.desired.node, r.desired.tickets
	next, err := nodeclient.State{Node: before, Tickets: tickets}.After(state)
	if err == nil {
		r.desired.node, r.desired.tickets = next.Node, next.Tickets
		err = r.applyDesired(controller)
	}
	if err != nil {
		r.desired.node, r.desired.tickets = before, tickets
		r.file.Error = fmt.Sprintf("state %d of controller %s: %s", state.Revision, controller, err)
		return err
	}
	r.desired.revision = state.Revision
	r.save()
	r.attachLate()
	return nil
}

// applyDesired makes the maps follow what a controller says. What an earlier process left by a file may be of another fleet.
func (r *reconciler) applyDesired(controller string) error {
	file := r.desired.file("controller " + controller)
	if r.waiting {
		if err := r.serving.keepsCookies(file, false); err != nil {
			return fmt.Errorf("%w; give controllers the keys and ids that this host runs by (`ballast ctl apply` of its file); if its connections may break: stop "+
				"the agent, `ballast agent --detach --instance %s`, and start it again", err, r.serving.instance)
		}
	}
	return r.apply(file)
}

// save keeps what controllers say.
func (r *reconciler) save() { r.tunnels.Do(r.desired.save) }

func (r *reconciler) checkDevices(now time.Time) {
	r.programs.Look(now)
	if err := r.serving.path.FollowClock(); err != nil { // connections are taken over before this host knows of sessions
		r.log.Error("how the clocks differ is not known", "error", err)
	}
	if r.known {
		r.ids.retry()
		r.tickets.retry()
		r.keys.setTickets(r.tickets.written())
		r.tickets.look(r.serving.path, now)
		r.joins.follow()
		r.tracked.follow()
		r.tracked.look(r.serving.path, now)
	}
	if r.programs.unattached != "" && r.known {
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
	if err == nil && r.serving.name == "" && !slices.Equal(local, r.serving.local) {
		refused := r.file.Error
		err = r.apply(r.serving.applied)
		r.file.Error = refused
	}
	r.attachLate()
	r.joins.follow()
	if err := errors.Join(err, r.follow()); err != nil {
		r.log.Error("services, addresses and next hops not updated", "error", err)
	}
}

// describe adds what the host serves to a status.
func (r *reconciler) describe(status *api.AgentStatus) {
	stops, problems := r.obstacles()
	status.Ready, status.NotReady, status.Problems = len(stops) == 0, stops, slices.Concat(stops, problems)
	status.Config, status.Generation, status.Revision = r.file, r.serving.generation, r.desired.revision
	status.Services, status.Interfaces = slices.Clone(r.serving.wanted.Marking), r.programs.Modes()
	for _, s := range r.serving.wanted.QUIC {
		status.IDFiles = append(status.IDFiles, r.ids.path(s.Service))
	}
	for _, s := range r.serving.wanted.Sessions {
		status.TicketFiles = append(status.TicketFiles, r.tickets.path(s.Service))
	}
	status.TicketKeys = r.tickets.status()
	status.Joins = slices.Clone(r.joins.wanted)
	status.Untracked = slices.Clone(r.tracked.there)
}

// obstacles are what keeps connections from carrying cookies, or the host from taking the services' packets, empty: it is ready. problems
// are what else is not as wanted.
func (r *reconciler) obstacles() (found, problems []string) {
	switch {
	case !r.known && r.configPath != "":
		found = append(found, "the file is refused: what an earlier process left goes on untouched")
	case !r.known && r.file.Error != "":
		found = append(found, "the state is refused: what an earlier process left goes on untouched")
	case !r.known && r.unnamed:
		found = append(found, r.whyUnnamed()+"; what an earlier process left goes on untouched")
	case !r.known:
		found = append(found, "no controller has said yet what this host serves, and no state was kept: what an earlier process left, if anything, goes on untouched")
	case !r.serving.any():
		found = append(found, r.whyUnnamed())
	}
	detached, down, _ := r.programs.obstacles()
	losing, avoided := r.programs.exits.Split(r.serving.leavesBy)
	found, problems = slices.Concat(found, detached, losing, r.serving.problems), slices.Concat(down, avoided)
	if r.serving.left && r.serving.any() {
		problems = append(problems, "only connections of before go on: "+r.whyUnnamed())
	}
	problems = slices.Concat(problems, r.accepts.problems(), r.ids.unwritten, r.tickets.problems(), r.joins.unmade, r.tracked.problems())
	if unsaved := r.desired.kept.Unsaved(); unsaved != "" {
		problems = append(problems, unsaved)
	}
	return found, problems
}

// whyUnnamed says why this host serves nothing. Controllers send an agent only the servers that its certificate speaks for.
func (r *reconciler) whyUnnamed() string {
	if r.configPath != "" || len(r.desired.node.Running.Services) > 0 {
		return "no service names this host: check --server and the servers' addresses"
	}
	who := r.credentials.Identity()
	addresses := "without an address"
	if len(who.Addresses) > 0 {
		addresses = "of " + strings.Trim(fmt.Sprint(who.Addresses), "[]")
	}
	return fmt.Sprintf("the controllers know no server by the certificate of this host (%s, %s): add the server, or make a certificate with its name or address "+
		"(`ballast ctl pki issue DIR agent NAME --address ADDRESS`)", who.Name, addresses)
}
