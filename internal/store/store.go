// Package store holds the desired state of a fleet: small documents by key that all controllers change and watch, and the list of
// the controllers that live. Package etcd keeps it.
package store

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// Document is one value. Keys are like "services/web".
type Document struct {
	Key      string
	Value    []byte // nil: there is none (any more)
	Revision uint64 // of the last change of this document; 0: there is none
	Same     bool   // for Commit: it stays as it is, and has to be what was read
}

// ErrConflict is returned by Commit when a document has changed since it was read: read again and decide again.
var ErrConflict = errors.New("another request changed the fleet at the same time")

// ErrUnknown is returned by Commit when it is not known whether it was carried out. It may be yet, unless the error is ErrConflict, too.
var ErrUnknown = errors.New("it may or may not have been carried out")

// ErrClosed is returned by what is called after Close.
var ErrClosed = errors.New("the store is closed")

// Limits are what one Commit has room for.
type Limits struct {
	Documents int
	Bytes     int // of their keys and values
}

// RevisionBump is what a restore from a backup adds to the revision: the store is newer than anything that a node knows then, and it shows
// which documents are of the backup.
const RevisionBump = 1_000_000_000

// Store is safe for concurrent use.
type Store interface {
	// Load returns all documents, by ascending key, and the store's revision that they are of.
	Load(ctx context.Context) (documents []Document, revision uint64, err error)
	// Watch delivers what changed after a revision, in order; the changes of one Commit together. The channel is closed when ctx
	// ends or when nothing more can be delivered without a gap: Load again.
	Watch(ctx context.Context, after uint64) <-chan Batch
	// Commit replaces the values of documents (nil: deletes them; Same: looks only) if each still has the Revision given, all together,
	// and otherwise returns ErrConflict. It is linearizable: what it compares is no older than its call.
	Commit(ctx context.Context, documents []Document) (revision uint64, err error)
	// Join adds a controller to the list of those that live until ctx ends, or until it was not heard of for the time to live
	// (about 2 s). The channel delivers the list at once and whenever it changes, itself included while it is on it, and is closed
	// when ctx ends. A controller that has dropped out joins again by itself, with a higher Term.
	Join(ctx context.Context, self Member) (<-chan []Member, error)
	// Limits tells what Commit has room for.
	Limits() Limits
	Close() error
}

// Batch is what one Commit changed.
type Batch struct {
	Revision  uint64
	Documents []Document
}

// Member is a controller that lives.
type Member struct {
	Name    string `json:"name"`
	Address string `json:"address"` // where nodes and ctl reach it
	Version string `json:"version"`
	Term    uint64 `json:"-"` // grows with every joining of anybody
	Rival   string `json:"-"` // address of another one that is on the list by the same name; empty: nobody is

	Addresses []netip.Addr `json:"addresses,omitempty"` // that its certificate names
}

// Check finds what no Commit can mean.
func Check(documents []Document, most Limits) error {
	if len(documents) > most.Documents {
		return fmt.Errorf("commit: %d documents: there is room for %d", len(documents), most.Documents)
	}
	seen := make(map[string]bool, len(documents))
	for _, d := range documents {
		if d.Key == "" || seen[d.Key] {
			return fmt.Errorf("commit: key %q is empty or there twice", d.Key)
		}
		seen[d.Key] = true
	}
	return nil
}
