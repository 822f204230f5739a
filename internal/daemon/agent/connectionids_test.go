package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/quiclb"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	ids "github.com/ballast-lb/ballast/pkg/quiclb"
)

func quicService(t *testing.T, id uint16) (*model.Keys, []plan.AgentService) {
	t.Helper()
	s := model.NewService()
	s.Name, s.Protocol, s.Affinity, s.Ports = "web", model.ProtocolUDP, model.AffinityQUIC, []uint16{443}
	s.Servers = []model.Server{{Name: "s1", ID: id, Weight: 1}}
	s.ApplyDefaults()
	keys := &model.Keys{Placement: [16]byte{1}, Current: 8, Cookie: map[uint32][16]byte{8: {2}, 9: {3}}}
	return keys, []plan.AgentService{{Service: &s, Server: &s.Servers[0]}}
}

func TestApplicationsFindTheirServersIDInAFile(t *testing.T) {
	c := &connectionIDs{dir: filepath.Join(t.TempDir(), "quic", "default")}
	keys, services := quicService(t, 0x0102)
	check := func(config uint8) *ids.Generator {
		t.Helper()
		if err := c.follow(keys, services); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(c.dir, "web.json")
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
			t.Fatalf("%v, %v", info, err)
		}
		generator, err := ids.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		id, err := generator.New()
		if err != nil {
			t.Fatal(err)
		}
		reads := quiclb.Config{ID: config, Key: plan.ConnectionIDKey(keys.Cookie[keys.Current], services[0].Service.VIP), ServerIDLength: 2, NonceLength: 14}
		if server, err := reads.Decode(id); err != nil || string(server) != "\x01\x02" {
			t.Fatalf("%x names %x, %v", id, server, err)
		}
		return generator
	}
	before := check(1)
	keys.Current = 9
	after := check(2)
	if before.StatelessResetKey() != after.StatelessResetKey() || before.TokenKey() != after.TokenKey() {
		t.Error("keys that are not of ids follow the epoch: applications would have to start again")
	}
	services[0].Server.ID = 3
	file := connectionIDFile(keys, services[0].Service, services[0].Server)
	if [32]byte(file.ResetKey) == before.StatelessResetKey() {
		t.Error("two servers share a key of stateless resets")
	}
}

func TestFilesOfServicesThatAreGoneAreRemoved(t *testing.T) {
	c := &connectionIDs{dir: filepath.Join(t.TempDir(), "quic")}
	keys, services := quicService(t, 1)
	if err := c.follow(keys, nil); err != nil { // there is no directory yet
		t.Fatal(err)
	}
	for range 2 {
		if err := c.follow(keys, services); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.follow(keys, nil); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(c.dir); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// Who may write there is root, but a link that somebody left is no file of ours.
func TestAFileIsReplacedNotWrittenThrough(t *testing.T) {
	c := &connectionIDs{dir: t.TempDir()}
	other := filepath.Join(t.TempDir(), "other")
	for _, name := range []string{"web.json", "web.json.new"} {
		if err := os.Symlink(other, filepath.Join(c.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	keys, services := quicService(t, 1)
	if err := c.follow(keys, services); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(other); !os.IsNotExist(err) {
		t.Errorf("wrote through a link: %v", err)
	}
}

func TestTheGroupMayReadTheFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	c, err := newConnectionIDs(t.TempDir(), "default", "daemon")
	if err != nil {
		t.Fatal(err)
	}
	keys, services := quicService(t, 1)
	if err := c.follow(keys, services); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(c.dir, "web.json")); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := newConnectionIDs(t.TempDir(), "default", "no such group"); err == nil {
		t.Error("a group that does not exist was taken")
	}
}
