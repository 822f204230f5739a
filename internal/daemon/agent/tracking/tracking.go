// Package tracking keeps services with session tls out of connection tracking: a table of nftables keeps the kernel's address translation off
// their packets.
package tracking

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/linux/untracked"
	"github.com/ballast-lb/ballast/internal/machine/unanswered"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Tracking keeps the table. It outlives the process, as the data path does, and the next process takes it over by its name.
type Tracking struct {
	table untracked.Table
	keep  bool // no table is made
	log   *slog.Logger

	wanted    []netip.AddrPort
	Untracked []netip.AddrPort
	clean     bool   // no service wants a table, and there is none
	problem   string // why connections may be tracked, empty: they are not
	Resets    string // why all of them are reset, empty: they are not, or that is not known

	judge unanswered.Resets
	reset string // that some were, as packets show; empty: none was, or nobody connects
}

// New returns the table of an instance, for no services yet. keep: they stay tracked.
func New(instance string, keep bool, log *slog.Logger) *Tracking {
	return &Tracking{table: untracked.TableOf(instance), keep: keep, log: log}
}

// Set takes the services, and follows them. absent are VIPs that this host does not have: their packets may need tracking to be taken at all
// (kube-proxy), and no socket of this host could be given them.
func (t *Tracking) Set(services []plan.AgentService, absent []netip.Addr) {
	t.wanted = nil
	for _, s := range services {
		for _, vip := range s.Service.VIPs() {
			if slices.Contains(absent, vip) {
				continue
			}
			for _, port := range s.Service.Ports {
				t.wanted = append(t.wanted, netip.AddrPortFrom(vip, port))
			}
		}
	}
	slices.SortFunc(t.wanted, netip.AddrPort.Compare)
	t.wanted = slices.Compact(t.wanted) // a table takes none twice
	t.Follow()
}

// Follow makes the table what is wanted, also where somebody has flushed it: call it now and then.
func (t *Tracking) Follow() {
	if t.clean && len(t.wanted) == 0 {
		return
	}
	wanted, problem := t.wanted, ""
	tracks, err := untracked.Tracks()
	if err == nil && (t.keep || !tracks) {
		wanted = nil
	}
	if err == nil {
		err = t.ensure(wanted)
	}
	if err == nil && t.keep && tracks && len(t.wanted) > 0 {
		problem, err = t.translated()
	}
	t.clean = err == nil && len(t.wanted) == 0
	t.Resets = ""
	if err != nil && len(t.wanted) > 0 {
		problem = fmt.Sprintf("connections that load balancers begin may be reset, as the kernel may track them: %v", err)
		if t.Resets = unprotected(err); t.Resets != "" {
			problem = t.Resets
		}
	}
	if problem != "" && problem != t.problem {
		t.log.Warn(problem)
	}
	t.problem = problem
}

func (t *Tracking) ensure(wanted []netip.AddrPort) error {
	holds, err := t.table.Holds(wanted)
	if err == nil && !holds {
		if err = t.table.Set(wanted); err == nil {
			t.log.Info("changed what the kernel does not track", "table", t.table.Name, "at", wanted)
		}
	}
	if t.Untracked = wanted; err != nil {
		t.Untracked = nil
	}
	return err
}

// unprotected is why connections are reset where the table could not be made, empty: nothing translates addresses, or nothing is tracked.
func unprotected(unmade error) string {
	tracking, err := untracked.Tracking()
	if err != nil || !tracking {
		return ""
	}
	translation, err := untracked.Translation()
	if err != nil || translation == "" {
		return ""
	}
	return fmt.Sprintf("connections that load balancers begin are reset: the kernel tracks them and has address translation (%s), and the table that keeps them out "+
		"cannot be made: %v: remove the translation, or keep them out by rules of your own and start the agent with --keep-tracking", translation, unmade)
}

// translated is what keeps connections from coming to be while they are tracked.
func (t *Tracking) translated() (problem string, err error) {
	chain, err := untracked.Translation()
	if err != nil || chain == "" {
		return "", err
	}
	return fmt.Sprintf("connections that load balancers begin are reset: the kernel tracks them and has address translation (%s): start the agent without --keep-tracking, "+
		"or do not track them by rules of your own", chain), nil
}

// Problems may name one cause twice: what the rules say, and what packets meet.
func (t *Tracking) Problems() []string {
	return slices.DeleteFunc([]string{t.problem, t.reset}, func(p string) bool { return p == "" })
}

// Leave removes the table.
func (t *Tracking) Leave() error { return t.table.Remove() }
