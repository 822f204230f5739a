package host

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

func TestADirectoryThatIsStillWrittenToIsRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lab")
	if err := os.MkdirAll(filepath.Join(dir, "s1"), 0o755); err != nil {
		t.Fatal(err)
	}
	written := make(chan struct{})
	var dying sync.WaitGroup
	dying.Go(func() {
		for i := 0; ; i++ { // until it is gone
			err := os.WriteFile(filepath.Join(dir, "s1", string(rune('a'+i%26))), nil, 0o600)
			if errors.Is(err, os.ErrNotExist) {
				return
			}
			if i == 100 {
				close(written)
			}
		}
	})
	<-written
	if err := removeDir(dir); err != nil {
		t.Error(err)
	}
	dying.Wait()
}

func TestNextLabRemovesWhatADeadOneLeft(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	options := Options{Progress: t.Logf, Binary: "/proc/self/exe"}
	living, err := New(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	defer living.Close()
	dead := &Lab{Options: options, spaces: map[string]*netspace.Space{}}
	if err := dead.claim(); err != nil {
		t.Fatal(err)
	}
	dead.AddSpace("s9")
	sleeper, err := dead.Start(Spawn{Node: "s9", Program: "sleep", Arguments: []string{"600"}})
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := dead.Start(Spawn{Node: "s9", Program: "unshare", Arguments: []string{"--net", "--mount", "sleep", "600"}})
	if err != nil {
		t.Fatal(err)
	}
	// A name that was bound in a mount namespace which this one does not see into.
	unseen := SpacePrefix + dead.ID + "-s10"
	if err := os.WriteFile(filepath.Join(netspace.Dir, unseen), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	group, noLimits := dead.Cgroup("s9")
	if noLimits == nil {
		sleeper.LimitCPU("s9", 0.1)
	}
	if err := dead.lock.Close(); err != nil { // as the death of its owner does
		t.Fatal(err)
	}
	cleaned, err := Clean(false)
	if err != nil {
		t.Fatal(err)
	}
	<-sleeper.Exited
	<-elsewhere.Exited
	at := slices.IndexFunc(cleaned.Removed, func(r Removed) bool { return r.Lab == dead.ID })
	if at < 0 || len(cleaned.Removed[at].Namespaces) != 2 || cleaned.Removed[at].Processes < 2 || cleaned.Removed[at].Kept {
		t.Errorf("it says that it removed %+v", cleaned.Removed)
	}
	if !slices.Contains(cleaned.Running, living.ID) {
		t.Errorf("it says that these run: %v", cleaned.Running)
	}
	if left := netspace.Names(SpacePrefix + dead.ID); len(left) != 0 {
		t.Errorf("namespaces are left: %v", left)
	}
	if _, err := os.Stat(group); noLimits == nil && err == nil {
		t.Error("its cgroup is left")
	}
	if _, err := os.Stat(filepath.Join(baseDir, dead.ID)); err == nil {
		t.Error("its directory is left")
	}
	if _, err := os.Stat(living.Dir); err != nil {
		t.Errorf("a living lab was removed: %v", err)
	}
}
