package desired

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
)

// Promise: An agent that restarts without controllers continues with its ticket keys (`agent.json`, mode 0600).
func TestAgentsKeepTheFleetsKeysForTheirNextProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "default", "agent.json")
	keys := rotation.ServiceTickets{Current: 2}
	for epoch := range uint32(2) {
		keys.Keys = append(keys.Keys, rotation.ServiceTicketKey{Epoch: epoch + 1, Secret: rotation.TicketSecret{0xc0, byte(epoch)}, Fingerprint: []byte{byte(epoch), 0, 0, 0, 0, 0, 0, 0}})
	}
	before := State{Saved: statefile.File{Path: path, Log: slog.New(slog.DiscardHandler)}, Tickets: map[string]rotation.ServiceTickets{"web": keys}, Revision: 7}
	before.Save(Tunnels{})
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("the state: %v, %v", info, err)
	}
	after := State{Saved: before.Saved}
	if found, _, err := after.Load(); !found || err != nil || !reflect.DeepEqual(after.Tickets, before.Tickets) {
		t.Errorf("kept %v: %v, %v", after.Tickets, found, err)
	}
	before.Tickets["web"].Keys[0].Fingerprint = nil
	before.Save(Tunnels{})
	if _, _, err := after.Load(); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("a damaged state: %v", err)
	}
}
