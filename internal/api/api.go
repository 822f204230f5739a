// Package api is what the processes of Ballast say to each other: HTTP and JSON over a unix socket of a daemon; the fleet service, which
// reads and changes the desired state; and the conversions between messages (ballastv1) and the model.
package api

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// Routes that every daemon serves.
const (
	PathStatus   = "/v1/status"
	PathCounters = "/v1/counters"
	PathBackup   = "/v1/backup"  // of a controller: its store, with all keys
	PathRunning  = "/v1/running" // a model.Fleet: the desired state that runs, without keys
)

// DryRun is where a daemon tells what a change at a path would do. One that knows no dry runs refuses it, and carries nothing out.
func DryRun(path string) string { return strings.Replace(path, "/v1/", "/v1/dry-run/", 1) }

// Status answers PathStatus.
type Status struct {
	Role     string   `json:"role"` // "lb" or "agent"
	Ready    bool     `json:"ready"`
	NotReady []string `json:"not_ready,omitempty"` // what keeps the daemon from its work: it is ready without any
	Version  string   `json:"version"`
	Config   Config   `json:"config"`
	// ByControllers: the desired state is what they say, and Config.Path who of them said it last.
	ByControllers bool   `json:"by_controllers,omitempty"`
	Generation    uint64 `json:"generation"` // counts the changes applied to the data path
}

// Config says which file a daemon runs by.
type Config struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"` // hex, of the content last applied
	Error  string `json:"error"`  // why the file as it is now was refused; empty: it was not
	// RefusedSince is when the daemon first refused what is there instead of what it runs by: another error since then is no new beginning.
	RefusedSince *time.Time `json:"refused_since,omitempty"`
}

// Refuse notes why the file as it is now does not run.
func (c *Config) Refuse(why string, now time.Time) {
	if c.Error = why; c.RefusedSince == nil {
		c.RefusedSince = new(now.UTC().Truncate(time.Second))
	}
}

// ServeHealth answers PathHealth: 200, or 503 with what keeps the daemon from its work, a line each.
func ServeHealth(w http.ResponseWriter, stops []string) {
	if len(stops) > 0 {
		http.Error(w, "not ready: "+strings.Join(stops, "\nnot ready: "), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
}

// Counters answers PathCounters: packets by verdict since the data path was attached.
type Counters struct {
	Counters map[string]uint64 `json:"counters"`
}

// Error is an answer that is not a success.
type Error struct {
	Code    int    `json:"-"`
	Message string `json:"error"`
	Kind    string `json:"code,omitempty"` // as connect.Code names it: unimplemented by daemons that do not serve what is asked
}

// Unserved reports whether a daemon has answered that it does not serve what is asked.
func (e *Error) Unserved() bool { return e.Kind == connect.CodeUnimplemented.String() }

func (e *Error) Error() string { return e.Message }

// BadRequest makes an Error that blames the client.
func BadRequest(format string, args ...any) *Error {
	return &Error{Code: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

// Ctl begins commands that ask the instance's daemon.
func Ctl(instance string) string {
	if instance == "default" {
		return "ballast ctl"
	}
	return "ballast ctl --instance " + instance
}

// IDDir is where an agent keeps a file for each service with affinity quic, SERVICE.json.
func IDDir(runDir, instance string) string { return filepath.Join(runDir, "quic", instance) }

// TicketDir is where an agent keeps a file for each service with session tls, SERVICE.json.
func TicketDir(runDir, instance string) string { return filepath.Join(runDir, "tickets", instance) }

// RunDir is where daemons have their sockets and pins, if nothing else is said.
const RunDir = "/run/ballast"

// SocketPath is where the instance's daemon listens.
func SocketPath(runDir, instance string) string {
	return filepath.Join(runDir, instance, "ctl.sock")
}
