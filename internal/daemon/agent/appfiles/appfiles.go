// Package appfiles keeps files by which applications make what names this host: QUIC connection ids (affinity quic), TLS session tickets
// (session tls).
package appfiles

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Files keeps one for each service in its directory.
type Files struct {
	Dir     string
	Content string // what applications make of them
	Of      func(keys *model.Keys, s *model.Service, server *model.Server) any
	Log     *slog.Logger
	group   int // who may read them, besides root

	keys      *model.Keys
	Services  []plan.AgentService // to be read alone, as the next one
	Unwritten []string            // why files are not as these have them, a line each
}

// AllowGroup names who may read the files; the empty group: root alone.
func (c *Files) AllowGroup(group string) error {
	if group == "" {
		return nil
	}
	known, err := user.LookupGroup(group)
	if err != nil {
		return err
	}
	c.group, err = strconv.Atoi(known.Gid)
	return err
}

// Path is where the file of a service is.
func (c *Files) Path(s *model.Service) string { return filepath.Join(c.Dir, s.Name+".json") }

// Set takes what is wanted from now on. What fails is a problem, and tried again with Retry: maps have already what is wanted.
func (c *Files) Set(keys *model.Keys, services []plan.AgentService) {
	c.keys, c.Services = keys, services
	c.try()
}

// Retry writes what could not be written.
func (c *Files) Retry() {
	if len(c.Unwritten) > 0 {
		c.try()
	}
}

func (c *Files) try() {
	before := c.Unwritten
	c.Unwritten = nil
	if err := c.follow(c.keys, c.Services); err != nil {
		for line := range strings.Lines(err.Error()) {
			c.Unwritten = append(c.Unwritten, "applications do not get the "+c.Content+" as they are now: "+strings.TrimSuffix(line, "\n"))
		}
	}
	switch {
	case slices.Equal(before, c.Unwritten):
	case len(c.Unwritten) == 0:
		c.Log.Info("files of "+c.Content+" are written", "in", c.Dir)
	default:
		c.Log.Error("files of "+c.Content+" are not written: it is tried again every second", "problems", c.Unwritten)
	}
}

// follow writes the files of these services, and removes all others.
func (c *Files) follow(keys *model.Keys, services []plan.AgentService) error {
	var errs []error
	wanted := map[string]bool{}
	for _, s := range services {
		path := c.Path(s.Service)
		wanted[filepath.Base(path)] = true
		errs = append(errs, c.write(path, c.Of(keys, s.Service, s.Server)))
	}
	there, err := os.ReadDir(c.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, entry := range there {
		if strings.HasSuffix(entry.Name(), ".json") && !wanted[entry.Name()] {
			errs = append(errs, os.Remove(filepath.Join(c.Dir, entry.Name())))
		}
	}
	return errors.Join(errs...)
}

// write replaces a file by one move, if its content is another.
func (c *Files) write(path string, file any) error {
	text, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, text) {
		return c.allow(path)
	}
	if err := api.MakeDir(c.Dir); err != nil {
		return err
	}
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	if err := c.allow(next); err != nil {
		return err
	}
	return os.Rename(next, path)
}

func (c *Files) allow(path string) error {
	mode := os.FileMode(0o600)
	if c.group != 0 {
		mode = 0o640
	}
	return errors.Join(os.Chown(path, 0, c.group), os.Chmod(path, mode))
}
