package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

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
}

// saveState replaces the state file as a whole, so that a crash leaves the old one or the new one.
func saveState(path string, n *node.Node) error {
	base, err := config.Marshal(n.Base)
	if err != nil {
		return err
	}
	running, err := config.Marshal(n.Running)
	if err != nil {
		return err
	}
	content, err := json.MarshalIndent(savedState{string(base), string(running), n.Removed, n.Past}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	return os.Rename(path+".new", path)
}

// loadState reads the state file; without one the node knows nothing.
func loadState(path string) (n node.Node, err error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return n, nil
	}
	if err != nil {
		return n, fmt.Errorf("load state: %w", err)
	}
	var saved savedState
	if err := json.Unmarshal(content, &saved); err != nil {
		return n, fmt.Errorf("load state %s: %w: remove the file to start from the configuration alone", path, err)
	}
	for _, part := range []struct {
		text string
		into *model.Fleet
	}{{saved.Base, &n.Base}, {saved.Running, &n.Running}} {
		if *part.into, err = config.Parse(path, []byte(part.text)); err != nil {
			return node.Node{}, fmt.Errorf("load state: %w: remove the file to start from the configuration alone", err)
		}
	}
	n.Removed, n.Past = saved.Removed, saved.Past
	return n, nil
}
