// Package revocations is what a node knows of revoked certificates: what controllers have told it, kept for its next life.
package revocations

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/pki"
)

// List is safe for concurrent use.
type List struct {
	credentials *pki.Credentials
	path        string
	log         *slog.Logger

	mutex   sync.Mutex
	problem string // why a part of what controllers tell is not taken
	unsaved error
}

// Load goes on with what an earlier process was told, which is in a file of that role in the folder of the node's state.
func Load(credentials *pki.Credentials, stateFile string, role pki.Role, log *slog.Logger) (*List, error) {
	l := &List{credentials: credentials, path: filepath.Join(filepath.Dir(stateFile), string(role)+"-revoked.json"), log: log}
	content, err := os.ReadFile(l.path)
	if errors.Is(err, os.ErrNotExist) {
		return l, nil
	}
	var list []pki.Revocation
	if err == nil {
		if err = json.Unmarshal(content, &list); err != nil {
			err = fmt.Errorf("%s: %w: remove the file, and controllers send the list again: until then revoked controllers are believed", l.path, err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("load revoked certificates: %w", err)
	}
	l.take(list)
	return l, nil
}

// Take adds what a controller tells, cuts whom it concerns, and keeps it.
func (l *List) Take(controller string, message *ballastv1.Revocations) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	news := l.take(api.RevocationsFromProto(message.Revocations))
	if len(news) == 0 {
		return
	}
	l.log.Warn("certificates are revoked: they are refused from now on", "controller", controller, "number", len(news), "last", news[len(news)-1].What())
	if l.unsaved = l.save(); l.unsaved != nil {
		l.log.Error("revoked certificates are not saved: a restart would know fewer", "error", l.unsaved)
	}
}

// take returns what was not known. The caller holds the lock, or nobody else has l yet.
func (l *List) take(list []pki.Revocation) (news []pki.Revocation) {
	news, err := l.credentials.Revoke(list, time.Now())
	known, _ := l.credentials.RevokedCount()
	full := known >= pki.RevokedMax
	if !full { // else it lacks still what it had no room for
		l.problem = ""
	}
	if err != nil {
		l.problem = err.Error()
		if full { // by a thief who spoke for a controller, perhaps
			l.problem += fmt.Sprintf(": or, where controllers list fewer (`ballast ctl pki list`), stop this node, remove %s, and start it again", l.path)
		}
		l.log.Error(l.problem)
	}
	return news
}

func (l *List) save() error {
	content, err := json.Marshal(l.credentials.Revoked())
	if err != nil {
		return err
	}
	return statefile.Replace(l.path, content)
}

// Problems are what operators should know. What could not be saved is tried again.
func (l *List) Problems() (problems []string) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.problem != "" {
		problems = append(problems, l.problem)
	}
	if l.unsaved != nil {
		if l.unsaved = l.save(); l.unsaved != nil {
			problems = append(problems, fmt.Sprintf("revoked certificates are not saved: %v: a restart would know fewer", l.unsaved))
		}
	}
	return problems
}
