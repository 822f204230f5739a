// Package api is how the processes of Ballast are asked and told things on one machine: HTTP and JSON over a unix
// socket. Daemons serve it, ctl and the lab are its clients.
package api

import (
	"fmt"
	"net/http"
	"path/filepath"
)

// Routes that every daemon serves.
const (
	PathStatus   = "/v1/status"
	PathCounters = "/v1/counters"
)

// Status answers PathStatus.
type Status struct {
	Role       string `json:"role"` // "lb" or "agent"
	Ready      bool   `json:"ready"`
	Version    string `json:"version"`
	Config     Config `json:"config"`
	Generation uint64 `json:"generation"` // counts the changes applied to the data path
}

// Config says which file a daemon runs by.
type Config struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"` // hex, of the content last applied
	Error  string `json:"error"`  // why the file as it is now was refused; empty: it was not
}

// Counters answers PathCounters: packets by verdict since the data path was attached.
type Counters struct {
	Counters map[string]uint64 `json:"counters"`
}

// Error is an answer that is not a success.
type Error struct {
	Code    int    `json:"-"`
	Message string `json:"error"`
}

func (e *Error) Error() string { return e.Message }

// BadRequest makes an Error that blames the client.
func BadRequest(format string, args ...any) *Error {
	return &Error{Code: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

// SocketPath is where the instance's daemon listens.
func SocketPath(runDir, instance string) string {
	return filepath.Join(runDir, instance, "ctl.sock")
}
