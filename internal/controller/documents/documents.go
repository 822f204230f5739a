// Package documents is what controllers keep in their store: its documents, and a snapshot of them all at one revision.
package documents

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
)

// Keys of the store. A service and its health are documents of their own: checks must not get in the way of people.
const (
	ServicesPrefix = "services/"
	HealthPrefix   = "health/"
	KeysKey        = "keys"
	NodesKey       = "nodes"
	ControllersKey = "controllers"
	HistoryKey     = "history"
	BalancersKey   = "balancers"
	RingKey        = "ring" // replica.Members
	TicketsKey     = "tickets"
	UndoPrefix     = "undo/" // by change and step
	RevokedPrefix  = "revoked/"

	SigningKey        = "signing" // Signing
	InvitationsPrefix = "invitations/"
	EnrolledPrefix    = "enrolled/"
)

// OfFleet reports whether a document has a part of the fleet, which only makes sense as a whole (model.Fleet.Validate).
func OfFleet(key string) bool {
	return key == KeysKey || key == NodesKey || strings.HasPrefix(key, ServicesPrefix)
}

// ServiceOf returns the name of the service that a document is about, empty: of none. Load balancers of the second tier
// are judged like the servers of a service.
func ServiceOf(key string) string {
	if key == NodesKey {
		return model.SecondTierName
	}
	for _, prefix := range []string{ServicesPrefix, HealthPrefix} {
		if name, ok := strings.CutPrefix(key, prefix); ok {
			return name
		}
	}
	return ""
}

// Service is a service with what there was of it.
type Service struct {
	Service model.Service   `json:"service"`
	Removed []fleet.Removed `json:"removed,omitempty"`
	Past    [][]model.Share `json:"past,omitempty"`
	File    []model.Server  `json:"file,omitempty"` // as the file applied last says them, of those that ctl has set otherwise since
}

// Nodes has the load balancers with a tier, how those of the second are checked, how all keep a replicated table, and what becomes of packets
// to VIPs that are for no service.
type Nodes struct {
	Nodes  []model.Node `json:"nodes"`
	Health model.Health `json:"health,omitzero"`
	File   []model.Node `json:"file,omitempty"` // as in Service

	Replicas model.Replicas `json:"replicas,omitzero"`
	Unserved model.Unserved `json:"unserved,omitempty"`
}

// Balancers names the load balancers that have joined and were not forgotten: they may forward while nobody hears of
// them, also after all controllers were restarted. Older controllers leave it alone.
type Balancers struct {
	Names []string `json:"names"` // ascending
}

// Controllers is the list of controllers that services are divided by. Its revision is the term: everybody who goes by
// the same list has the same, and it grows with every list.
type Controllers struct {
	Members []Member `json:"members"`
}

// Member is a controller on the list.
type Member struct {
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

// ticketsDocument has the keys in hexadecimal digits.
type ticketsDocument struct {
	Current uint32           `json:"current"`
	Since   time.Time        `json:"since"`
	Keys    []ticketDocument `json:"keys"`
}

type ticketDocument struct {
	Epoch uint32    `json:"epoch"`
	Key   string    `json:"key"`
	Made  time.Time `json:"made"`
	Until time.Time `json:"until,omitzero"`
}

func writeTickets(t *rotation.TicketKeys) ticketsDocument {
	d := ticketsDocument{Current: t.Current, Since: t.Since}
	for i := range t.Keys {
		k := &t.Keys[i]
		d.Keys = append(d.Keys, ticketDocument{k.Epoch, hex.EncodeToString(k.Secret[:]), k.Made, k.Until})
	}
	return d
}

func (d *ticketsDocument) read() (t rotation.TicketKeys, err error) {
	t = rotation.TicketKeys{Current: d.Current, Since: d.Since}
	for _, k := range d.Keys {
		secret, err := hex.DecodeString(k.Key)
		if err != nil || len(secret) != len(rotation.TicketSecret{}) {
			return t, fmt.Errorf("the key of epoch %d has no %d hexadecimal digits", k.Epoch, 2*len(rotation.TicketSecret{}))
		}
		if last := len(t.Keys); k.Epoch == 0 || last > 0 && k.Epoch <= t.Keys[last-1].Epoch {
			return t, fmt.Errorf("epoch %d is not in its place", k.Epoch)
		}
		t.Keys = append(t.Keys, rotation.TicketKey{Epoch: k.Epoch, Secret: rotation.TicketSecret(secret), Made: k.Made, Until: k.Until})
	}
	if d.Current != 0 && t.Key(d.Current) == nil {
		return t, fmt.Errorf("epoch %d is in use and has no key", d.Current)
	}
	return t, nil
}
