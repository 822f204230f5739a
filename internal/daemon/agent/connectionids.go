// Files by which applications make QUIC connection ids that name this host (affinity quic).
package agent

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/pkg/quiclb"
)

// connectionIDs keeps a file for each service in its directory.
type connectionIDs struct {
	dir   string
	group int // who may read them, besides root
	log   *slog.Logger

	keys      *model.Keys
	services  []plan.AgentService
	unwritten []string // why files are not as these say, a line each
}

// newConnectionIDs names who may read the files; the empty group: root alone.
func newConnectionIDs(runDir, instance, group string, log *slog.Logger) (*connectionIDs, error) {
	c := &connectionIDs{dir: api.IDDir(runDir, instance), log: log}
	if group == "" {
		return c, nil
	}
	known, err := user.LookupGroup(group)
	if err != nil {
		return nil, fmt.Errorf("--quic-group: %w", err)
	}
	c.group, err = strconv.Atoi(known.Gid)
	return c, err
}

// path is where the file of a service is.
func (c *connectionIDs) path(s *model.Service) string { return filepath.Join(c.dir, s.Name+".json") }

// set says what is wanted from now on. What fails is a problem, and tried again with retry: maps say already what is wanted.
func (c *connectionIDs) set(keys *model.Keys, services []plan.AgentService) {
	c.keys, c.services = keys, services
	c.try()
}

func (c *connectionIDs) retry() {
	if len(c.unwritten) > 0 {
		c.try()
	}
}

func (c *connectionIDs) try() {
	before := c.unwritten
	c.unwritten = nil
	if err := c.follow(c.keys, c.services); err != nil {
		for line := range strings.Lines(err.Error()) {
			c.unwritten = append(c.unwritten, "applications do not get the connection ids as they are now: "+strings.TrimSuffix(line, "\n"))
		}
	}
	switch {
	case slices.Equal(before, c.unwritten):
	case len(c.unwritten) == 0:
		c.log.Info("files of connection ids are written", "in", c.dir)
	default:
		c.log.Error("files of connection ids are not written: it is tried again every second", "problems", c.unwritten)
	}
}

// follow writes the files of these services, and removes all others.
func (c *connectionIDs) follow(keys *model.Keys, services []plan.AgentService) error {
	var errs []error
	wanted := map[string]bool{}
	for _, s := range services {
		path := c.path(s.Service)
		wanted[filepath.Base(path)] = true
		errs = append(errs, c.write(path, connectionIDFile(keys, s.Service, s.Server)))
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

// connectionIDFile is what a server needs to know of the epoch that is written. No other service of the vip has its reset key: who sends that one an id
// would be told how to end a connection of this one (RFC 9000 21.11).
func connectionIDFile(keys *model.Keys, s *model.Service, server *model.Server) *quiclb.File {
	key := plan.ConnectionIDKey(keys.Cookie[keys.Current], s.VIP)
	id := binary.BigEndian.AppendUint64(nil, uint64(server.ID))
	derive := func(purpose string, id uint16) []byte {
		return cookie.Derive(keys.Placement, purpose+" of "+s.Name, s.VIP, id, 32)
	}
	return &quiclb.File{
		Service: s.Name, Config: plan.QUICConfigNumber(keys.Current), Algorithm: s.QUIC.Algorithm.String(), Key: key[:],
		ServerID: id[len(id)-int(s.QUIC.ServerIDLength):], NonceLength: int(s.QUIC.NonceLength),
		ResetKey: derive(cookie.ForResets, server.ID), TokenKey: derive(cookie.ForTokens, 0),
	}
}

// write replaces a file by one move, if it says something else.
func (c *connectionIDs) write(path string, file *quiclb.File) error {
	text, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, text) {
		return c.allow(path)
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
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

func (c *connectionIDs) allow(path string) error {
	mode := os.FileMode(0o600)
	if c.group != 0 {
		mode = 0o640
	}
	return errors.Join(os.Chown(path, 0, c.group), os.Chmod(path, mode))
}
