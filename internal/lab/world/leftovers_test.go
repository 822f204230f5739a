package world

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
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
