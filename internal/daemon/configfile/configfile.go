// Package configfile is the configuration file of a daemon that runs by one: read, watched, and refused. A daemon without one asks controllers.
package configfile

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
)

// Refused is the metric of a daemon whose file, or what controllers sent instead, is refused.
var Refused = prometheus.NewDesc("ballast_config_refused", "1 while the configuration file, or a controller's state, cannot be applied.", nil, nil)

// OnHangup calls do at each SIGHUP until ctx ends: a node without a file asks its controllers for everything again.
func OnHangup(ctx context.Context, do func()) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, unix.SIGHUP)
	go func() {
		defer signal.Stop(hangup)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangup:
				do()
			}
		}
	}()
}

// Load reads a daemon's configuration, and says when others can read its keys.
func Load(path string, log *slog.Logger) (*config.File, error) {
	file, err := config.Load(path)
	if err == nil && file.Exposed != "" {
		log.Warn(file.Exposed)
	}
	return file, err
}

// Note says what has become of a file that may have been refused before: why it is, once, and once that it is in order again.
func Note(file *api.Config, refused string, err error, log *slog.Logger) {
	switch {
	case err != nil:
		if file.Refuse(err.Error(), time.Now()); file.Error != refused {
			log.Error("configuration refused, the old state is kept", "error", err)
		}
	case refused != "":
		log.Info("the configuration is in order again", "file", file.Path)
	}
}

// ByForce adds the action that takes a file all the same that living connections would not survive.
func ByForce(err error, instance, action string) error {
	return fmt.Errorf("%w; if the file is right: `%s config %s --force` takes it, and connections that carry what it replaces lose their servers", err, api.Ctl(instance), action)
}

// Taking is how a file is taken.
type Taking struct {
	DryRun      bool // only tell what would change
	Force       bool // although living connections lose their servers
	AllowRemove bool // although it may be half a file
	Start       bool // the daemon starts by it: nobody has counted connections yet
}

// Losses are what a file that was read because it had changed, from a fleet that runs to another, may have lost by being cut off, one line each: nobody has
// looked at it. nil: nothing.
func Losses(from, to *model.Fleet, living func(service string, id uint16) fleet.Connections) []string {
	lines := fleet.Removals(from, to, living)
	if some := func(s model.Service) bool { return len(s.Servers) > 0 }; len(lines) == 0 && len(to.Services) == 0 && slices.ContainsFunc(from.Services, some) {
		lines = []string{"every service goes"}
	}
	return lines
}

// Whole refuses a file that has lost something, unless somebody has said that it is meant.
func (t Taking) Whole(losses []string, instance string) error {
	if len(losses) == 0 || t.AllowRemove || t.DryRun {
		return nil
	}
	reload := api.Ctl(instance) + " config reload"
	if t.Force {
		reload += " --" + api.Force
	}
	return fmt.Errorf("is it whole? %s; if that is meant: `%s --%s` takes it", strings.Join(losses, "; "), reload, api.AllowRemove)
}

// Asked reads the file, or goes back to it, because somebody asks for it.
func Asked(r *http.Request, dryRun bool, log *slog.Logger, take func(Taking) (api.Changed, error)) (any, error) {
	said := func(name string) bool { return r.URL.Query().Get(name) == "true" }
	how := Taking{DryRun: dryRun, Force: said(api.Force), AllowRemove: said(api.AllowRemove)}
	if how.Force && !dryRun {
		log.Warn("the configuration is read by force: living connections may lose their servers", "by", api.CallerName(r.Context()))
	}
	changed, err := take(how)
	if err != nil {
		return nil, api.BadRequest("%s", err)
	}
	return changed, nil
}

// AskedOfControllers has controllers tell their complete state again, because somebody asks a daemon for it that has no file.
func AskedOfControllers(dryRun bool, controllers interface {
	Connected() []string
	Rejoin()
}) (any, error) {
	connected := controllers.Connected()
	if len(connected) == 0 {
		return nil, api.BadRequest("no controller is connected: the last state goes on, and the first controller that is reached sends the complete one")
	}
	if !dryRun {
		controllers.Rejoin()
	}
	return api.Changed{Changes: []string{"asked for the complete state: " + strings.Join(connected, ", ")}}, nil
}
