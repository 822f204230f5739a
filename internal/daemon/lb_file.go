// The configuration file of a daemon that runs by one: what is taken of it, what is refused, and what force takes.
package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/machine/node"
)

// Reload applies the configuration file as it is now; one that cannot be applied is refused and the old state goes on. By force it is taken
// although living connections lose their servers.
func (lb *LB) Reload(force bool) error {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	refused := lb.file.Error
	file, err := loadFile(lb.options.Config, lb.log)
	if err == nil {
		err = lb.edit(file, force)
	}
	noteFile(&lb.file, refused, err, lb.log)
	return err
}

// noteFile says what has become of a file that may have been refused before: why it is, once, and once that it is in order again.
func noteFile(file *api.Config, refused string, err error, log *slog.Logger) {
	switch {
	case err != nil:
		if file.Error = err.Error(); file.Error != refused {
			log.Error("configuration refused, the old state goes on", "error", err)
		}
	case refused != "":
		log.Info("the configuration is in order again", "file", file.Path)
	}
}

// byForce adds how a file is taken all the same that living connections, about so many, would not survive.
func byForce(err error, connections uint64) error {
	return fmt.Errorf("%w; if the file is right: `ballast ctl config reload --force` takes it, and connections that carry what it replaces lose their servers (about %d live here)", err, connections)
}

func (lb *LB) edit(file *config.File, force bool) error {
	before, take := lb.node, lb.node.EditFile
	if force {
		take = lb.node.ForceFile
	}
	changes, err := take(file.Fleet, time.Now())
	var breaks *node.Breaks
	if errors.As(err, &breaks) {
		err = byForce(err, lb.living())
	}
	if err == nil {
		err = lb.carryOut(before)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file.Path, err)
	}
	lb.file, lb.stale = api.Config{Path: file.Path, SHA256: file.SHA256}, false
	lb.logChanges("file", changes)
	return nil
}

// living is about how many connections this load balancer sends on. Callers hold mu.
func (lb *LB) living() (connections uint64) {
	for _, place := range lb.tables.Places() {
		for _, index := range place.Counters {
			if traffic, err := lb.path.ServerTraffic(index); err == nil {
				connections += uint64(traffic.Open())
			}
		}
	}
	return connections
}

// reload reads the file because somebody asks for it.
func reload(r *http.Request, log *slog.Logger, read func(force bool) error) (any, error) {
	force := r.URL.Query().Get(api.Force) == "true"
	if force {
		log.Warn("the configuration is read by force: living connections may lose their servers", "by", callerOf(r.Context()))
	}
	if err := read(force); err != nil {
		return nil, api.BadRequest("%s", err)
	}
	return api.Changed{}, nil
}
