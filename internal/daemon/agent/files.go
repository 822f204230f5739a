// Files by which applications make what names this host: QUIC connection ids (affinity quic), TLS session tickets (session tls).
package agent

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

// files keeps one for each service in its directory.
type files struct {
	dir     string
	group   int    // who may read them, besides root
	content string // what applications make of them
	of      func(keys *model.Keys, s *model.Service, server *model.Server) any
	log     *slog.Logger

	keys      *model.Keys
	services  []plan.AgentService
	unwritten []string // why files are not as these say, a line each
}

// allowGroup names who may read the files; the empty group: root alone.
func (c *files) allowGroup(group string) error {
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

// path is where the file of a service is.
func (c *files) path(s *model.Service) string { return filepath.Join(c.dir, s.Name+".json") }

// set says what is wanted from now on. What fails is a problem, and tried again with retry: maps say already what is wanted.
func (c *files) set(keys *model.Keys, services []plan.AgentService) {
	c.keys, c.services = keys, services
	c.try()
}

func (c *files) retry() {
	if len(c.unwritten) > 0 {
		c.try()
	}
}

func (c *files) try() {
	before := c.unwritten
	c.unwritten = nil
	if err := c.follow(c.keys, c.services); err != nil {
		for line := range strings.Lines(err.Error()) {
			c.unwritten = append(c.unwritten, "applications do not get the "+c.content+" as they are now: "+strings.TrimSuffix(line, "\n"))
		}
	}
	switch {
	case slices.Equal(before, c.unwritten):
	case len(c.unwritten) == 0:
		c.log.Info("files of "+c.content+" are written", "in", c.dir)
	default:
		c.log.Error("files of "+c.content+" are not written: it is tried again every second", "problems", c.unwritten)
	}
}

// follow writes the files of these services, and removes all others.
func (c *files) follow(keys *model.Keys, services []plan.AgentService) error {
	var errs []error
	wanted := map[string]bool{}
	for _, s := range services {
		path := c.path(s.Service)
		wanted[filepath.Base(path)] = true
		errs = append(errs, c.write(path, c.of(keys, s.Service, s.Server)))
	}
	there, err := os.ReadDir(c.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, entry := range there {
		if strings.HasSuffix(entry.Name(), ".json") && !wanted[entry.Name()] {
			errs = append(errs, os.Remove(filepath.Join(c.dir, entry.Name())))
		}
	}
	return errors.Join(errs...)
}

// write replaces a file by one move, if it says something else.
func (c *files) write(path string, file any) error {
	text, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, text) {
		return c.allow(path)
	}
	if err := api.MakeDir(c.dir); err != nil {
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

func (c *files) allow(path string) error {
	mode := os.FileMode(0o600)
	if c.group != 0 {
		mode = 0o640
	}
	return errors.Join(os.Chown(path, 0, c.group), os.Chmod(path, mode))
}
