// A snapshot of the store.
package documents

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"

	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// Snapshot is what the store had at one revision. It is shared: nobody changes it.
type Snapshot struct {
	Revision    uint64
	Services    map[string]*Service
	Health      map[string]*fleet.Unhealthy
	Keys        model.Keys
	Nodes       Nodes
	Controllers Controllers
	History     History
	Balancers   Balancers
	Ring        replica.Members
	Tickets     rotation.TicketKeys
	Revoked     map[string]*pki.Revocation // certificates, by Key
	Signing     Signing                    // empty: there is none
	Invitations map[string]*Invitation     // by id
	Enrolled    map[string]*Enrolled       // nodes, by name
	Undos       map[string][]byte          // what undoes a step of a change, by undoKey
	Revisions   map[string]uint64          // key -> revision of the document
	ChangedAt   map[string]uint64          // service -> revision of the last change of anything about it
}

// New returns the snapshot of an empty store.
func New() *Snapshot {
	return &Snapshot{Services: map[string]*Service{}, Health: map[string]*fleet.Unhealthy{}, Revoked: map[string]*pki.Revocation{},
		Invitations: map[string]*Invitation{}, Enrolled: map[string]*Enrolled{}, Undos: map[string][]byte{},
		Revisions: map[string]uint64{}, ChangedAt: map[string]uint64{}}
}

// Clone returns a copy that Take may change.
func (s *Snapshot) Clone() *Snapshot {
	next := *s
	next.Services, next.Health, next.Revoked = maps.Clone(s.Services), maps.Clone(s.Health), maps.Clone(s.Revoked)
	next.Invitations, next.Enrolled = maps.Clone(s.Invitations), maps.Clone(s.Enrolled)
	next.Undos = maps.Clone(s.Undos)
	next.Revisions, next.ChangedAt = maps.Clone(s.Revisions), maps.Clone(s.ChangedAt)
	return &next
}

// Equal reports whether both are of one revision and say the same.
func (s *Snapshot) Equal(other *Snapshot) bool {
	return s != nil && s.Revision == other.Revision && maps.Equal(s.Revisions, other.Revisions) && reflect.DeepEqual(s.content(), other.content())
}

func (s *Snapshot) content() []any {
	return []any{s.Services, s.Health, s.Keys, s.Nodes, s.Controllers, s.History, s.Balancers, s.Ring, s.Tickets, s.Revoked, s.Signing, s.Invitations, s.Enrolled, s.Undos}
}

// Rewrites reports whether a snapshot cannot have come of the one before, as revisions grow: the store was restored
// from a copy.
func (s *Snapshot) Rewrites(before *Snapshot) bool {
	last, known := s.Revisions[HistoryKey], before.Revisions[HistoryKey]
	return s.Revision < before.Revision || last < known || last == known && s.History.Last != before.History.Last
}

// Restored reports whether a document is from a backup that the store was restored from, and was not written since.
func (s *Snapshot) Restored(key string) bool {
	return s.Revision >= s.Revisions[key]+store.RevisionBump
}

// Take puts a document of a revision into a snapshot that is not shared yet.
func (s *Snapshot) Take(d store.Document, revision uint64) error {
	if s.Revisions[d.Key] = d.Revision; d.Value == nil {
		delete(s.Revisions, d.Key)
	}
	var err error
	if name, ok := strings.CutPrefix(d.Key, ServicesPrefix); ok {
		s.ChangedAt[name] = max(s.ChangedAt[name], revision)
		err = takeInto(s.Services, name, d.Value)
	} else if name, ok := strings.CutPrefix(d.Key, HealthPrefix); ok {
		s.ChangedAt[name] = max(s.ChangedAt[name], revision)
		err = takeInto(s.Health, name, d.Value)
	} else if key, ok := strings.CutPrefix(d.Key, RevokedPrefix); ok {
		err = takeInto(s.Revoked, key, d.Value)
	} else if id, ok := strings.CutPrefix(d.Key, InvitationsPrefix); ok {
		err = takeInto(s.Invitations, id, d.Value)
	} else if name, ok := strings.CutPrefix(d.Key, EnrolledPrefix); ok {
		err = takeInto(s.Enrolled, name, d.Value)
	} else if strings.HasPrefix(d.Key, UndoPrefix) {
		if s.Undos[d.Key] = d.Value; d.Value == nil {
			delete(s.Undos, d.Key)
		}
	} else if d.Key == SigningKey {
		err = decode(d.Value, &s.Signing)
	} else if d.Key == NodesKey {
		s.ChangedAt[model.SecondTierName] = max(s.ChangedAt[model.SecondTierName], revision)
		err = decode(d.Value, &s.Nodes)
	} else if d.Key == ControllersKey {
		err = decode(d.Value, &s.Controllers)
	} else if d.Key == HistoryKey {
		err = decode(d.Value, &s.History)
	} else if d.Key == BalancersKey {
		err = decode(d.Value, &s.Balancers)
	} else if d.Key == RingKey {
		err = decode(d.Value, &s.Ring)
	} else if d.Key == TicketsKey {
		var tickets ticketsDocument
		if err = decode(d.Value, &tickets); err == nil {
			s.Tickets, err = tickets.read()
		}
	} else if d.Key == KeysKey {
		var keys keysDocument
		if err = decode(d.Value, &keys); err == nil && d.Value != nil {
			var read model.Keys
			if read, err = keys.read(); err == nil {
				s.Keys = read
			}
		}
	}
	if err != nil {
		return fmt.Errorf("document %s of the store: %w: it was not written by this version of Ballast: upgrade this controller, or put a document that it can read in its place with etcdctl", d.Key, err)
	}
	return nil
}

func takeInto[D any](documents map[string]*D, name string, value []byte) error {
	if value == nil {
		delete(documents, name)
		return nil
	}
	read := new(D)
	err := json.Unmarshal(value, read)
	if err == nil {
		documents[name] = read
	}
	return err
}

func decode[D any](value []byte, into *D) error {
	var read D
	if value != nil {
		if err := json.Unmarshal(value, &read); err != nil {
			return err
		}
	}
	*into = read
	return nil
}

// Put returns a document that takes the place of the one that the snapshot has.
func (s *Snapshot) Put(key string, value any) (store.Document, error) {
	encoded, err := json.Marshal(value)
	return store.Document{Key: key, Value: encoded, Revision: s.Revisions[key]}, err
}

// PutTickets is Put for keys of session tickets.
func (s *Snapshot) PutTickets(t *rotation.TicketKeys) (store.Document, error) {
	return s.Put(TicketsKey, writeTickets(t))
}

// Delete returns what removes a document that the snapshot has.
func (s *Snapshot) Delete(key string) store.Document {
	return store.Document{Key: key, Revision: s.Revisions[key]}
}

// Replicas returns how load balancers keep the replicated table, and whether a service needs it.
func (s *Snapshot) Replicas() (r model.Replicas, needed bool) {
	r = s.Nodes.Replicas
	r.ApplyDefaults()
	for _, d := range s.Services {
		needed = needed || d.Service.Replicated()
	}
	return r, needed
}

// secondTier returns the second tier as nodes are judged, nil: there is none.
func (s *Snapshot) secondTier() *model.Service {
	return (&model.Fleet{Nodes: s.Nodes.Nodes, NodeHealth: s.Nodes.Health}).SecondTier()
}

// Judges reports whether there is a service of that name, or a second tier.
func (s *Snapshot) Judges(name string) bool {
	return s.Services[name] != nil || name == model.SecondTierName && s.secondTier() != nil
}
