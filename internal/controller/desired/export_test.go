package desired

import (
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/store"
)

// Load, Show and Become are for tests of what the store has at one moment.
func (m *Mirror) Load(loaded []store.Document, revision uint64) error {
	return m.load(loaded, revision)
}
func (m *Mirror) Show(revision uint64) (skipped []string, whole bool) { return m.show(revision) }
func (m *Mirror) Become(next *documents.Snapshot)                     { m.become(next, true, func() {}) }

// ShowsAll reports whether nodes would be told everything.
func (m *Mirror) ShowsAll() bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.unshown.whole
}

const ReloadPause = reloadPause
