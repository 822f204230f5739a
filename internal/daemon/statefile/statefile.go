// Package statefile keeps what a daemon must know in its next life.
package statefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/ballast-lb/ballast/internal/model"
)

// Fleet is a fleet with its secrets.
type Fleet struct {
	Keys     model.Keys      `json:"keys"`
	Services []model.Service `json:"services"`

	Nodes      []model.Node `json:"nodes,omitempty"`
	NodeHealth model.Health `json:"node_health,omitzero"`

	Replicas model.Replicas `json:"replicas,omitzero"`

	TunnelsFrom []netip.Addr `json:"tunnels_from,omitempty"`

	Unserved model.Unserved `json:"unserved,omitempty"`
}

// File is where a daemon keeps its state for its next life.
type File struct {
	Path string
	Log  *slog.Logger

	unsaved string
}

// Save replaces the file. Where that fails it wants to be called again with the state of then.
func (f *File) Save(state any) {
	before := f.unsaved
	f.unsaved = ""
	content, err := json.Marshal(state)
	if err == nil {
		err = Replace(f.Path, content)
	}
	if err != nil {
		f.unsaved = fmt.Sprintf("the state is not saved: %v: a restart would know an older one", err)
	}
	switch {
	case f.unsaved == before:
	case f.unsaved == "":
		f.Log.Info("the state is saved again")
	default:
		f.Log.Error(f.unsaved)
	}
}

// Unsaved is why the file is not what was to be saved last, empty: it is.
func (f *File) Unsaved() string { return f.unsaved }

// Load reads what Save wrote; found: there is a file. The remedy is for one that cannot be read.
func (f *File) Load(state any, remedy string) (found bool, err error) {
	var unread *os.PathError
	switch err = decode(f.Path, state); {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case errors.As(err, &unread):
		return false, fmt.Errorf("load state: %w", err)
	}
	return false, fmt.Errorf("load state %s: %w: %s", f.Path, err, remedy)
}

// Replace writes a file of mode 0600 as a whole, in a folder that it makes: a crash leaves the old file or the new one.
func Replace(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := writeDurably(path+".new", content); err != nil {
		return err
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
	StartFromFile        = "remove the file to start from the configuration alone, without what ctl changed, removed servers and their connections"
	StartFromControllers = "remove the file: the data path goes on as it is until a controller says what to do"
)

// decode refuses also what is well-formed but no state: it would be taken for one without services.
func decode(path string, value any) error {
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

// LB and Agent are where daemons keep their state.
func LB(dir, instance string) string    { return filepath.Join(dir, instance, "state.json") }
func Agent(dir, instance string) string { return filepath.Join(dir, instance, "agent.json") }

// Kept is a state file.
type Kept struct {
	Role  string // lb or agent
	Path  string
	Fleet model.Fleet // that ran
	Err   error       // why no daemon could begin with it
}

// Examine reads a role's state file into saved, which has running; none: there is no such file.
func Examine(role, path string, saved any, running *Fleet) (kept []Kept) {
	err := decode(path, saved)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	fleet := model.Fleet(*running)
	if err == nil {
		err = fleet.Validate()
	}
	return []Kept{{Role: role, Path: path, Fleet: fleet, Err: err}}
}
