// Backups of the store: what is served to root on this machine, and what is in one.
package controller

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

// serveBackup answers with a copy of the store. There are keys in it, so it is for root on this machine alone.
func (c *controller) serveBackup(w http.ResponseWriter, r *http.Request) {
	s, ok := c.store.Store.(*etcd.Store)
	if !ok {
		http.Error(w, `{"error": "this store cannot be copied"}`, http.StatusNotImplemented)
		return
	}
	content, err := s.Backup(r.Context())
	if err != nil {
		http.Error(w, fmt.Sprintf(`{"error": %q}`, err), http.StatusServiceUnavailable)
		return
	}
	defer content.Close()
	if _, err := io.Copy(w, content); err != nil {
		panic(http.ErrAbortHandler) // whoever reads sees that the end is missing
	}
}

// BackupSummary says what is in a backup.
type BackupSummary struct {
	Revision uint64   `json:"revision"`
	Services []string `json:"services"`
	Servers  int      `json:"servers"`
	Epochs   []uint32 `json:"epochs"` // of cookie keys
	Tickets  int      `json:"ticket_keys"`
}

// SummariseBackup checks a backup as a whole, and that the fleet in it can be read.
func SummariseBackup(path string) (*BackupSummary, error) {
	contents, err := etcd.ReadBackup(path)
	if err != nil {
		return nil, err
	}
	fleet := documents.New()
	for _, d := range contents.Documents {
		if err := fleet.Take(d, d.Revision); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	s := &BackupSummary{Revision: contents.Revision, Services: slices.Sorted(maps.Keys(fleet.Services)), Epochs: slices.Sorted(maps.Keys(fleet.Keys.Cookie)), Tickets: len(fleet.Tickets.Keys)}
	for _, service := range fleet.Services {
		s.Servers += len(service.Service.Servers)
	}
	return s, nil
}

// String is for people.
func (s *BackupSummary) String() string {
	services := model.Counted(len(s.Services), "service", "services")
	if len(s.Services) > 0 {
		services += " (" + strings.Join(s.Services, ", ") + ")"
	}
	return fmt.Sprintf("revision %d, %s with %s, keys of cookies (epochs %s) and %d of session tickets: keep it as secret as a private key",
		s.Revision, services, model.Counted(s.Servers, "server", "servers"), strings.Trim(fmt.Sprint(s.Epochs), "[]"), s.Tickets)
}
