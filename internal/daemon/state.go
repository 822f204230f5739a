package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
)

// savedFleet is a fleet with its secrets.
type savedFleet struct {
	Keys     model.Keys      `json:"keys"`
	Services []model.Service `json:"services"`

	Nodes      []model.Node `json:"nodes,omitempty"`
	NodeHealth model.Health `json:"node_health,omitzero"`

	TunnelsFrom []netip.Addr `json:"tunnels_from,omitempty"`
}

// savedState is the state file.
type savedState struct {
	Base    savedFleet                 `json:"base"`
	Running savedFleet                 `json:"running"`
	Removed []node.Removed             `json:"removed"`
	Past    map[string][][]model.Share `json:"past"`
	// TakesPart is what probes found: without it every restart would take timestamps off until it has probed again.
	TakesPart map[netip.AddrPort]bool `json:"takes_part"`
	Revision  uint64                  `json:"revision,omitempty"` // that controllers gave the state
	Unhealthy map[string]unhealthy    `json:"unhealthy,omitempty"`
	Suspects  []suspect               `json:"suspects,omitempty"`
}

// saveState replaces the state file as a whole, so that a crash leaves the old one or the new one. Callers hold mu.
func (lb *LB) saveState() error {
	if lb.waiting {
		return nil // there is none
	}
	n := &lb.node
	state := savedState{Base: savedFleet(n.Base), Running: savedFleet(n.Running), Removed: n.Removed, Past: n.Past, TakesPart: lb.probes.takesPart, Unhealthy: lb.unhealthy,
		Suspects: lb.connections.suspects.list}
	if lb.remote != nil {
		state.Revision = lb.remote.follower.Revision
	}
	return replaceFile(lb.statePath(), state)
}

// replaceFile writes a value as JSON.
func replaceFile(path string, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	if err := writeDurably(path+".new", content); err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	return os.Rename(path+".new", path)
}

// writeDurably has the content on disk before it returns: a rename must not outrun it.
func writeDurably(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Sync(), file.Close())
}

// What to do about a state file that cannot be read.
const (
	startFromFile        = "remove the file to start from the configuration alone, without what ctl changed, removed servers and their connections"
	startFromControllers = "remove the file: the data path goes on as it is until a controller says what to do"
)

// readFile reads what replaceFile wrote; found: there is a file.
func readFile(path string, value any, remedy string) (found bool, err error) {
	var unread *os.PathError
	switch err = decodeFile(path, value); {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case errors.As(err, &unread):
		return false, fmt.Errorf("load state: %w", err)
	}
	return false, fmt.Errorf("load state %s: %w: %s", path, err, remedy)
}

// decodeFile refuses also what is well-formed but no state: it would be taken for one without services.
func decodeFile(path string, value any) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var state struct{ Running *struct{} }
	switch err := json.Unmarshal(content, &state); {
	case err != nil:
		return err
	case state.Running == nil:
		return errors.New("it does not say what ran")
	}
	return json.Unmarshal(content, value)
}

// What daemons keep state in.
func lbState(dir, instance string) string    { return filepath.Join(dir, instance, "state.json") }
func agentState(dir, instance string) string { return filepath.Join(dir, instance, "agent.json") }

// loadState reads the state file; without one (known is false) the node knows nothing. Removed servers count as heard of now: the counters that would
// tell may be gone, and connections with them must not be.
func (lb *LB) loadState(now time.Time) (known bool, err error) {
	var saved savedState
	remedy := startFromFile
	if lb.remote != nil {
		remedy = startFromControllers
	}
	found, err := readFile(lb.statePath(), &saved, remedy)
	if err != nil || !found {
		return false, err
	}
	n := node.Node{Base: model.Fleet(saved.Base), Running: model.Fleet(saved.Running), Removed: saved.Removed, Past: saved.Past}
	for _, fleet := range []*model.Fleet{&n.Base, &n.Running} {
		if err := fleet.Validate(); err != nil {
			return false, fmt.Errorf("load state %s: %w: %s", lb.statePath(), err, remedy)
		}
	}
	for i := range n.Removed {
		if !n.Removed[i].Forgotten {
			n.Removed[i].LastSeen = now
		}
	}
	lb.node, lb.probes = n, probeTable{saved.TakesPart}
	lb.connections.suspects.replace(saved.Suspects)
	if saved.Unhealthy != nil {
		lb.unhealthy = saved.Unhealthy
	}
	if lb.remote != nil {
		lb.remote.follower.Revision = saved.Revision
	}
	return true, nil
}
