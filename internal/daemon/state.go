package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
)

// savedState is the state file: fleets as configuration files, so that the two are read by the same code.
type savedState struct {
	Base    string                     `json:"base"`
	Running string                     `json:"running"`
	Removed []node.Removed             `json:"removed"`
	Past    map[string][][]model.Share `json:"past"`
	// TakesPart is what probes found: without it every restart would take timestamps off until it has probed again.
	TakesPart map[netip.AddrPort]bool `json:"takes_part"`
}

// saveState replaces the state file as a whole, so that a crash leaves the old one or the new one.
func saveState(path string, n *node.Node, probes *probeTable) error {
	base, err := config.Marshal(n.Base)
	if err != nil {
		return err
	}
	running, err := config.Marshal(n.Running)
	if err != nil {
		return err
	}
	content, err := json.MarshalIndent(savedState{string(base), string(running), n.Removed, n.Past, probes.takesPart}, "", "  ")
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

// loadState reads the state file; without one the node knows nothing. Removed servers count as heard of now: the counters that would
// tell may be gone, and connections with them must not be.
func loadState(path string, now time.Time) (n node.Node, probes probeTable, err error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return n, probes, nil
	}
	if err != nil {
		return n, probes, fmt.Errorf("load state: %w", err)
	}
	var saved savedState
	if err := json.Unmarshal(content, &saved); err != nil {
		return n, probes, fmt.Errorf("load state %s: %w: remove the file to start from the configuration alone", path, err)
	}
	for _, part := range []struct {
		text string
		into *model.Fleet
	}{{saved.Base, &n.Base}, {saved.Running, &n.Running}} {
		if *part.into, err = config.Parse(path, []byte(part.text)); err != nil {
			return node.Node{}, probes, fmt.Errorf("load state: %w: remove the file to start from the configuration alone", err)
		}
	}
	n.Removed, n.Past = saved.Removed, saved.Past
	for i := range n.Removed {
		if !n.Removed[i].Forgotten {
			n.Removed[i].LastSeen = now
		}
	}
	return n, probeTable{saved.TakesPart}, nil
}
