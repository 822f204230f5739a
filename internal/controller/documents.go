package controller

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// Keys of the store. A service and its health are documents of their own: checks must not get in the way of people.
const (
	servicesPrefix = "services/"
	healthPrefix   = "health/"
	keysKey        = "keys"
	nodesKey       = "nodes"
	membersKey     = "controllers"
	historyKey     = "history"
	balancersKey   = "balancers"
	ringKey        = "ring" // replica.Members
	ticketsKey     = "tickets"
)

// ofFleet reports whether a document has a part of the fleet, which only makes sense as a whole (model.Fleet.Validate).
func ofFleet(key string) bool {
	return key == keysKey || key == nodesKey || strings.HasPrefix(key, servicesPrefix)
}

// serviceOf returns the name of the service that a document is about, empty: of none. Load balancers of the second tier are judged like
// the servers of a service.
func serviceOf(key string) string {
	if key == nodesKey {
		return model.SecondTierName
	}
	for _, prefix := range []string{servicesPrefix, healthPrefix} {
		if name, ok := strings.CutPrefix(key, prefix); ok {
			return name
		}
	}
	return ""
}

// serviceDocument is a service with what there was of it.
type serviceDocument struct {
	Service model.Service   `json:"service"`
	Removed []node.Removed  `json:"removed,omitempty"`
	Past    [][]model.Share `json:"past,omitempty"`
	File    []model.Server  `json:"file,omitempty"` // as the file applied last says them, of those that ctl has set otherwise since
}

// nodesDocument has the load balancers with a tier, how those of the second are checked, and how all keep a replicated table.
type nodesDocument struct {
	Nodes  []model.Node `json:"nodes"`
	Health model.Health `json:"health,omitzero"`
	File   []model.Node `json:"file,omitempty"` // as in serviceDocument

	Replicas model.Replicas `json:"replicas,omitzero"`
}

// balancersDocument names the load balancers that have joined and were not forgotten: they may forward while nobody hears of them, also
// after all controllers were restarted. Older controllers leave it alone.
type balancersDocument struct {
	Names []string `json:"names"` // ascending
}

// membersDocument is the list of controllers that services are divided by. Its revision is the term: everybody who goes by the same
// list has the same, and it grows with every list.
type membersDocument struct {
	Members []storedMember `json:"members"`
}

type storedMember struct {
	Name string `json:"name"`
	Term uint64 `json:"term"` // of its joining: it tells a controller from its former life
}

// keysDocument has keys in hexadecimal digits.
type keysDocument struct {
	Placement string            `json:"placement,omitempty"`
	Current   uint32            `json:"current"`
	Cookie    map[uint32]string `json:"cookie"`
}

func writeKeys(k *model.Keys) keysDocument {
	d := keysDocument{Placement: hex.EncodeToString(k.Placement[:]), Current: k.Current, Cookie: map[uint32]string{}}
	for epoch, key := range k.Cookie {
		d.Cookie[epoch] = hex.EncodeToString(key[:])
	}
	return d
}

func (d *keysDocument) read() (k model.Keys, err error) {
	k = model.Keys{Current: d.Current, Cookie: map[uint32][16]byte{}}
	if k.Placement, err = readKey(d.Placement); err != nil {
		return k, err
	}
	for epoch, text := range d.Cookie {
		if k.Cookie[epoch], err = readKey(text); err != nil {
			return k, err
		}
	}
	return k, nil
}

func readKey(text string) (key [16]byte, err error) {
	if hex.DecodedLen(len(text)) != len(key) {
		return key, fmt.Errorf("a key of %d bytes: they have %d", hex.DecodedLen(len(text)), len(key))
	}
	_, err = hex.Decode(key[:], []byte(text))
	return key, err
}

// snapshot is what the store had at one revision. It is shared: nobody changes it.
type snapshot struct {
	revision uint64
	services map[string]*serviceDocument
	health   map[string]*node.Unhealthy
	keys     model.Keys
	nodes    nodesDocument
	members  membersDocument
	history  historyDocument
	lbs      balancersDocument
	ring     replica.Members
	tickets  rotation.TicketKeys
	revoked  map[string]*pki.Revocation // certificates, by Key
	own      map[string]uint64          // key -> revision of the document
	seen     map[string]uint64          // service -> revision of the last change of anything about it
}

func (s *snapshot) clone() *snapshot {
	return &snapshot{s.revision, maps.Clone(s.services), maps.Clone(s.health), s.keys, s.nodes, s.members, s.history, s.lbs, s.ring, s.tickets, maps.Clone(s.revoked), maps.Clone(s.own), maps.Clone(s.seen)}
}

// equal reports whether both are of one revision and say the same.
func (s *snapshot) equal(other *snapshot) bool {
	return s != nil && s.revision == other.revision && maps.Equal(s.own, other.own) && reflect.DeepEqual(s.content(), other.content())
}

func (s *snapshot) content() []any {
	return []any{s.services, s.health, s.keys, s.nodes, s.members, s.history, s.lbs, s.ring, s.tickets, s.revoked}
}

// rewrites reports whether a snapshot cannot have come of the one before, as revisions grow: the store was restored from a copy.
func (s *snapshot) rewrites(before *snapshot) bool {
	last, known := s.own[historyKey], before.own[historyKey]
	return s.revision < before.revision || last < known || last == known && s.history.Last != before.history.Last
}

func newSnapshot() *snapshot {
	return &snapshot{services: map[string]*serviceDocument{}, health: map[string]*node.Unhealthy{}, revoked: map[string]*pki.Revocation{}, own: map[string]uint64{}, seen: map[string]uint64{}}
}

// take puts a document of a revision into a snapshot that is not shared yet.
func (s *snapshot) take(d store.Document, revision uint64) error {
	if s.own[d.Key] = d.Revision; d.Value == nil {
		delete(s.own, d.Key)
	}
	var err error
	if name, ok := strings.CutPrefix(d.Key, servicesPrefix); ok {
		s.seen[name] = max(s.seen[name], revision)
		err = takeInto(s.services, name, d.Value)
	} else if name, ok := strings.CutPrefix(d.Key, healthPrefix); ok {
		s.seen[name] = max(s.seen[name], revision)
		err = takeInto(s.health, name, d.Value)
	} else if key, ok := strings.CutPrefix(d.Key, revokedPrefix); ok {
		err = takeInto(s.revoked, key, d.Value)
	} else if d.Key == nodesKey {
		s.seen[model.SecondTierName] = max(s.seen[model.SecondTierName], revision)
		err = decode(d.Value, &s.nodes)
	} else if d.Key == membersKey {
		err = decode(d.Value, &s.members)
	} else if d.Key == historyKey {
		err = decode(d.Value, &s.history)
	} else if d.Key == balancersKey {
		err = decode(d.Value, &s.lbs)
	} else if d.Key == ringKey {
		err = decode(d.Value, &s.ring)
	} else if d.Key == ticketsKey {
		var tickets ticketsDocument
		if err = decode(d.Value, &tickets); err == nil {
			s.tickets, err = tickets.read()
		}
	} else if d.Key == keysKey {
		var keys keysDocument
		if err = decode(d.Value, &keys); err == nil && d.Value != nil {
			var read model.Keys
			if read, err = keys.read(); err == nil {
				s.keys = read
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

// node returns the desired state for somebody who wants to change it. Services are shared with the snapshot.
func (s *snapshot) node() *node.Node {
	n := &node.Node{Running: s.fleet(), Past: map[string][][]model.Share{}}
	overridden := model.Fleet{Nodes: s.nodes.File}
	for i := range n.Running.Services {
		running := &n.Running.Services[i]
		d := s.services[running.Name]
		n.Removed = append(n.Removed, d.Removed...)
		if d.Past != nil {
			n.Past[running.Name] = d.Past
		}
		if d.File != nil {
			overridden.Services = append(overridden.Services, model.Service{Name: running.Name, Affinity: running.Affinity, Servers: d.File})
		}
	}
	n.Recall(overridden)
	return n
}

// fleet returns what is wanted, services by name.
func (s *snapshot) fleet() model.Fleet {
	f := model.Fleet{Keys: s.keys, Services: make([]model.Service, 0, len(s.services)), Nodes: s.nodes.Nodes, NodeHealth: s.nodes.Health, Replicas: s.nodes.Replicas}
	for _, name := range slices.Sorted(maps.Keys(s.services)) {
		f.Services = append(f.Services, s.services[name].Service)
	}
	return f
}

// replicas returns how load balancers keep the replicated table, and whether a service needs it.
func (s *snapshot) replicas() (r model.Replicas, needed bool) {
	r = s.nodes.Replicas
	r.ApplyDefaults()
	for _, d := range s.services {
		needed = needed || d.Service.Replicated()
	}
	return r, needed
}

// secondTier returns the second tier as nodes are judged, nil: there is none.
func (s *snapshot) secondTier() *model.Service {
	return (&model.Fleet{Nodes: s.nodes.Nodes, NodeHealth: s.nodes.Health}).SecondTier()
}

// judges reports whether there is a service of that name, or a second tier.
func (s *snapshot) judges(name string) bool {
	return s.services[name] != nil || name == model.SecondTierName && s.secondTier() != nil
}

// view returns the desired state as nodes are told it.
func (s *snapshot) view() *engine.View {
	v := &engine.View{Revision: s.revision, Keys: s.keys, Tickets: s.tickets, Services: make([]engine.ServiceView, 0, len(s.services)), Nodes: s.nodes.Nodes, NodeHealth: s.nodes.Health}
	if second := s.secondTier(); second != nil {
		v.Second = &engine.ServiceView{Service: *second, Revision: s.seen[model.SecondTierName]}
		if h := s.health[model.SecondTierName]; h != nil {
			v.Second.Down, v.Second.Kept, v.Second.Cut = h.Down, h.Kept, h.Cut
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.services)) {
		d := s.services[name]
		one := engine.ServiceView{Service: d.Service, Past: d.Past, Revision: s.seen[name]}
		for i := range d.Removed {
			if !d.Removed[i].Forgotten {
				one.Removed = append(one.Removed, d.Removed[i].Server)
			}
		}
		if h := s.health[name]; h != nil {
			one.Down, one.Kept, one.Cut = h.Down, h.Kept, h.Cut
		}
		v.Services = append(v.Services, one)
	}
	return v
}

// changes returns the documents that make n of what the snapshot has.
func (s *snapshot) changes(n *node.Node) (documents []store.Document, err error) {
	put := func(key string, value any) {
		encoded, failed := json.Marshal(value)
		if failed != nil {
			err = fmt.Errorf("write document %s: %w", key, failed)
		}
		documents = append(documents, store.Document{Key: key, Value: encoded, Revision: s.own[key]})
	}
	if !reflect.DeepEqual(n.Running.Keys, s.keys) {
		put(keysKey, writeKeys(&n.Running.Keys))
	}
	overridden, files := n.Overridden(), map[string][]model.Server{}
	for i := range overridden.Services {
		files[overridden.Services[i].Name] = overridden.Services[i].Servers
	}
	nodes := nodesDocument{n.Running.Nodes, n.Running.NodeHealth, overridden.Nodes, n.Running.Replicas}
	if !reflect.DeepEqual(nodes, s.nodes) {
		put(nodesKey, nodes)
	}
	if key := healthPrefix + model.SecondTierName; !n.Running.HasSecondTier() && s.own[key] != 0 {
		documents = append(documents, store.Document{Key: key, Revision: s.own[key]})
	}
	removed := map[string][]node.Removed{}
	for _, r := range n.Removed {
		removed[r.Service] = append(removed[r.Service], r)
	}
	here := map[string]bool{}
	for i := range n.Running.Services {
		here[n.Running.Services[i].Name] = true
	}
	gone := map[netip.Addr][]string{} // a VIP is free before another service takes it
	for _, name := range slices.Sorted(maps.Keys(s.services)) {
		if vip := s.services[name].Service.VIP; !here[name] {
			gone[vip] = append(gone[vip], name)
		}
	}
	remove := func(vip netip.Addr) {
		for _, name := range gone[vip] {
			documents = append(documents, store.Document{Key: servicesPrefix + name, Revision: s.own[servicesPrefix+name]})
			if key := healthPrefix + name; s.own[key] != 0 {
				documents = append(documents, store.Document{Key: key, Revision: s.own[key]})
			}
		}
		delete(gone, vip)
	}
	for i := range n.Running.Services {
		service := &n.Running.Services[i]
		next := &serviceDocument{*service, removed[service.Name], n.Past[service.Name], files[service.Name]}
		if before := s.services[service.Name]; before == nil || !before.same(next) {
			remove(service.VIP)
			put(servicesPrefix+service.Name, next)
		}
	}
	for _, vip := range slices.SortedFunc(maps.Keys(gone), netip.Addr.Compare) {
		remove(vip)
	}
	return documents, err
}

// same compares what is written. Lists are compared apart: they are long, and reflection is slow.
func (d *serviceDocument) same(other *serviceDocument) bool {
	a, b := d.Service, other.Service
	sameServer := func(a, b model.Server) bool {
		equal := a.Deadline.Equal(b.Deadline)
		a.Deadline, b.Deadline = time.Time{}, time.Time{}
		return equal && a == b
	}
	servers := slices.EqualFunc(a.Servers, b.Servers, sameServer) && slices.EqualFunc(d.File, other.File, sameServer)
	removed := slices.EqualFunc(d.Removed, other.Removed, func(a, b node.Removed) bool {
		return a.Server.ID == b.Server.ID && a.Server.Name == b.Server.Name && a.Since.Equal(b.Since) && a.LastSeen.Equal(b.LastSeen) && a.Forgotten == b.Forgotten
	})
	past := slices.EqualFunc(d.Past, other.Past, slices.Equal)
	a.Servers, b.Servers = nil, nil
	return servers && removed && past && reflect.DeepEqual(a, b)
}
