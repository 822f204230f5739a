// Package mptcp keeps the addresses at which clients may join connections of MPTCP. The kernel announces them.
package mptcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/mptcp"
)

// Joins keeps endpoints of this host's kernel. What it has made is in a file that all agents of the host share, so that the next process knows it.
type Joins struct {
	dir, instance string
	log           *slog.Logger

	Wanted   []netip.AddrPort // to be read alone
	kept     []netip.AddrPort // those that stay where they are there, while there is room
	Problems []string         // why some are not there, a line each
	settled  bool             // all is as wanted, unless somebody changes it
}

// fileContent is that of the file, by network namespaces.
type fileContent map[string]*hostJoins

// hostJoins are those of one namespace.
type hostJoins struct {
	Initial   bool                        `json:"join_initial"` // that clients could join at the service's port, before the first agent came
	Instances map[string][]netip.AddrPort `json:"instances"`
}

// New returns those of an instance, which wants none yet.
func New(runDir, instance string, log *slog.Logger) *Joins {
	return &Joins{dir: filepath.Join(runDir, "mptcp"), instance: instance, log: log}
}

// Set takes what is wanted from now on, and what is not to be removed, and follows it.
func (j *Joins) Set(wanted, kept []netip.AddrPort) {
	j.Wanted, j.kept, j.settled = wanted, kept, false
	j.Follow()
}

// Follow makes what is wanted and not there, also where somebody has removed it, and removes what is neither wanted nor used. What fails is tried
// again with the next call.
func (j *Joins) Follow() {
	if j.settled && j.stands() || len(j.Wanted) == 0 && !j.madeAny() {
		return
	}
	before := j.Problems
	j.Problems = nil
	if err := j.change(func(made *hostJoins) error { return j.reconcile(made, mptcp.Used) }); err != nil {
		j.note(err)
	}
	if len(j.Wanted) > 0 {
		found := mptcp.Obstacles()
		j.Problems, j.settled = append(j.Problems, found...), j.settled && len(found) == 0
	}
	switch {
	case slices.Equal(before, j.Problems):
	case len(j.Problems) == 0:
		j.log.Info("clients with MPTCP are sent the address to join", "at", j.Wanted)
	default:
		j.log.Warn("clients with MPTCP are not sent the address to join", "problems", j.Problems)
	}
}

// madeAny reports whether an agent of this host has made any: hosts without get no files.
func (j *Joins) madeAny() bool {
	_, err := os.Stat(j.path())
	return !errors.Is(err, fs.ErrNotExist)
}

// stands reports whether what was made is there yet.
func (j *Joins) stands() bool {
	if len(j.Wanted) == 0 {
		return true
	}
	there, err := mptcp.Endpoints()
	initial, unread := mptcp.JoinInitial()
	if err != nil || unread != nil || initial {
		return false
	}
	for _, at := range j.Wanted {
		if !slices.ContainsFunc(there, func(e mptcp.Endpoint) bool { return e.Address == at }) {
			return false
		}
	}
	return true
}

func (j *Joins) note(err error) {
	for line := range strings.Lines(err.Error()) {
		j.Problems = append(j.Problems, "mptcp: "+strings.TrimSuffix(line, "\n"))
	}
}

// Leave undoes all.
func (j *Joins) Leave() error {
	if j.Wanted, j.kept = nil, nil; !j.madeAny() {
		return nil
	}
	none := func([]netip.AddrPort) (map[netip.AddrPort]uint64, error) { return nil, nil }
	return j.change(func(made *hostJoins) error { return j.reconcile(made, none) })
}

// reconcile remembers first and makes then, and removes first and forgets then: who is killed in between has forgotten nothing.
func (j *Joins) reconcile(made *hostJoins, used func([]netip.AddrPort) (map[netip.AddrPort]uint64, error)) error {
	there, err := mptcp.Endpoints()
	if errors.Is(err, mptcp.ErrUnknown) && len(j.Wanted) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	find := func(at netip.AddrPort) int {
		return slices.IndexFunc(there, func(e mptcp.Endpoint) bool { return e.Address == at })
	}
	var errs []error
	have := len(there)
	for _, at := range j.Wanted {
		if find(at) >= 0 {
			continue
		}
		if err := mptcp.Add(at); err != nil {
			errs = append(errs, explain(err, have))
		} else {
			have++
		}
	}
	if have >= mptcp.EndpointsMax && len(errs) > 0 {
		j.kept = nil // what subflows use stays all the same
	}
	left := slices.DeleteFunc(slices.Clone(made.Instances[j.instance]), j.stays)
	if len(left) == 0 {
		return errors.Join(errs...)
	}
	busy, err := used(left)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, at := range left {
		if busy[at] > 0 { // to remove it would end subflows
			continue
		}
		if i := find(at); i >= 0 && !made.others(j.instance, at) {
			if err := mptcp.Remove(there[i]); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		made.Instances[j.instance] = slices.DeleteFunc(made.Instances[j.instance], func(one netip.AddrPort) bool { return one == at })
	}
	return errors.Join(errs...)
}

// stays reports whether an endpoint that was made is not to be removed.
func (j *Joins) stays(at netip.AddrPort) bool {
	return slices.Contains(j.Wanted, at) || slices.Contains(j.kept, at)
}

// explain adds what to do. have is how many endpoints there are.
func explain(err error, have int) error {
	switch {
	case have >= mptcp.EndpointsMax && (errors.Is(err, unix.ERANGE) || errors.Is(err, unix.EINVAL)): // EINVAL: older kernels
		return fmt.Errorf("%w: the kernel has room for %d endpoints: remove others (`ip mptcp endpoint show`), or have fewer services with mptcp on this host",
			err, mptcp.EndpointsMax)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%w: give this host the vip (`ip address add VIP/32 dev lo`)", err)
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w: another program has the port, or connections of before are closing there: it is tried again", err)
	}
	return err
}

// others reports whether another agent of the host has this one, too.
func (m *hostJoins) others(instance string, at netip.AddrPort) bool {
	for name, list := range m.Instances {
		if name != instance && slices.Contains(list, at) {
			return true
		}
	}
	return false
}

// change lets do change what is there, alone on this host. The file says before what is to come, and after what has remained.
func (j *Joins) change(do func(*hostJoins) error) error {
	if err := os.MkdirAll(j.dir, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(j.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // which unlocks it
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	space, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	all, err := j.load()
	if err != nil {
		return err
	}
	made, first := all[space], false
	if made == nil {
		made = &hostJoins{Instances: map[string][]netip.AddrPort{}}
		if made.Initial, err = mptcp.JoinInitial(); err != nil && len(j.Wanted) > 0 {
			return err
		}
		all[space], first = made, true
	}
	for _, at := range j.Wanted {
		if !slices.Contains(made.Instances[j.instance], at) {
			made.Instances[j.instance] = append(made.Instances[j.instance], at)
		}
	}
	if len(made.Instances[j.instance]) == 0 && first {
		j.settled = true
		return nil
	}
	if err := j.save(all); err != nil {
		return err
	}
	errs := []error{do(made)}
	there := made.Instances[j.instance]
	if len(there) == 0 {
		delete(made.Instances, j.instance)
	}
	errs = append(errs, made.setInitial())
	if len(made.Instances) == 0 {
		delete(all, space)
	}
	err = errors.Join(append(errs, j.save(all))...)
	j.settled = err == nil && !slices.ContainsFunc(there, func(at netip.AddrPort) bool { return !j.stays(at) })
	return err
}

// setInitial keeps clients from joining at services' own ports while there are others, and puts back afterwards what was before, unless somebody has
// changed it.
func (m *hostJoins) setInitial() error {
	initial, err := mptcp.JoinInitial()
	wanted := len(m.Instances) == 0
	if err != nil || initial == wanted || wanted && !m.Initial {
		return err
	}
	return mptcp.SetJoinInitial(wanted)
}

func (j *Joins) path() string { return filepath.Join(j.dir, "joins.json") }

// load reads the file. A damaged one is as none: what is there is then nobody's, but for what is wanted.
func (j *Joins) load() (fileContent, error) {
	all := fileContent{}
	content, err := os.ReadFile(j.path())
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(content, &all); err != nil {
		j.log.Error("what agents have configured in the kernel for MPTCP is not known: `ip mptcp endpoint show`", "file", j.path(), "error", err)
		return fileContent{}, nil
	}
	if all == nil { // null is valid, too
		return fileContent{}, nil
	}
	for space, made := range all {
		if made == nil || made.Instances == nil {
			delete(all, space)
		}
	}
	return all, nil
}

func (j *Joins) save(all fileContent) error {
	if len(all) == 0 {
		return os.Remove(j.path())
	}
	content, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	content = append(content, '\n')
	if there, err := os.ReadFile(j.path()); err == nil && bytes.Equal(there, content) {
		return nil
	}
	next := j.path() + ".new"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return err
	}
	return os.Rename(next, j.path())
}
