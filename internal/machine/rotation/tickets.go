package rotation

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Keys of TLS session tickets (RFC 5077; RFC 8446, section 4.6.1) rotate by themselves. Servers get each one long before tickets are made by it, and read
// tickets by it until the last of these has expired. So a session resumes at any server of its service, whichever has heard of a change first.

// Constants of RFC 8446.
const ticketLife = 7 * 24 * time.Hour // the longest that a client may use a ticket

// Implementation constants.
const (
	ticketPeriod   = 24 * time.Hour // that tickets are made by one key
	ticketPatience = 24 * time.Hour // that the next key waits, beyond that, for servers that do not have it
	clockSkew      = time.Hour      // of controllers: a time that is further ahead was written by a wrong clock
	// ticketSlack is how long a key is read beyond its tickets' life: a server that nobody waits for any more has made its last ones by then.
	ticketSlack = ticketPeriod + ticketPatience

	// TicketSettle is how long all servers must have had a key before tickets are made by it: applications look at their file once a second.
	TicketSettle = 10 * time.Second
	// TicketKeysMax is how many keys servers have at most: preload/ticket.c has room for them.
	TicketKeysMax = 16
)

// TicketSecret encrypts tickets. It is printed without its bytes.
type TicketSecret [32]byte

func (s TicketSecret) String() string { return fmt.Sprintf("(%d bytes)", len(s)) }

// GoString hides the bytes.
func (s TicketSecret) GoString() string { return s.String() }

// TicketKey is one key of the fleet.
type TicketKey struct {
	Epoch  uint32
	Secret TicketSecret
	Made   time.Time
	Until  time.Time // when tickets by it were made last; zero: never, or they are now
}

// Fingerprint tells the key from others without telling the key.
func (k *TicketKey) Fingerprint() []byte {
	sum := sha256.Sum256(append([]byte("ballast ticket key fingerprint\x00"), k.Secret[:]...))
	return sum[:FingerprintSize]
}

// TicketKeys are those of a fleet. The zero value has none yet.
type TicketKeys struct {
	Current uint32 // epoch that tickets are made by; 0: there is none
	Since   time.Time
	Keys    []TicketKey // by epoch, ascending: later ones than the current are used next, earlier ones were used before
}

// Key returns that of an epoch, or nil.
func (t *TicketKeys) Key(epoch uint32) *TicketKey {
	for i := range t.Keys {
		if t.Keys[i].Epoch == epoch {
			return &t.Keys[i]
		}
	}
	return nil
}

// Next is the epoch that is used after the current one; 0: its key was not made yet.
func (t *TicketKeys) Next() uint32 {
	for i := range t.Keys {
		if t.Keys[i].Epoch > t.Current {
			return t.Keys[i].Epoch
		}
	}
	return 0
}

// Due is when the next key is used, if all servers have it.
func (t *TicketKeys) Due() time.Time { return t.Since.Add(ticketPeriod) }

// Expires is when a key that was used before is dropped.
func (t *TicketKeys) Expires(k *TicketKey) time.Time {
	last := k.Until
	if last.Before(k.Made) { // never used
		last = k.Made
	}
	return last.Add(ticketLife + ticketSlack)
}

// Step returns what becomes of the keys now, and what has changed: at most one key is made, used or dropped. fresh is a random secret, behind says which
// servers must not get tickets by the next key yet.
func (t *TicketKeys) Step(now time.Time, fresh TicketSecret, behind []string) (next TicketKeys, changes []string) {
	if t.Current == 0 {
		next = t.Revoked(now, fresh)
		return next, []string{fmt.Sprintf("ticket keys: epoch %d is made and used", next.Current)}
	}
	late := now.Sub(t.Due())
	switch upcoming := t.Next(); {
	case upcoming == 0:
		next = t.with(now, fresh)
		return next, []string{fmt.Sprintf("ticket keys: epoch %d is made, to be used next", next.Next())}
	case t.Since.After(now.Add(clockSkew)): // it would be used for as long as that clock was ahead
		next = *t
		next.Since = now
		return next, []string{fmt.Sprintf("ticket keys: epoch %d was used by a clock that was %v ahead", t.Current, t.Since.Sub(now).Round(time.Second))}
	case late >= 0 && len(behind) == 0 || late >= ticketPatience:
		next = t.Using(now, upcoming)
		changes = []string{fmt.Sprintf("ticket keys: epoch %d is used in place of %d", upcoming, t.Current)}
		for _, why := range behind {
			changes = append(changes, "ticket keys: used all the same: "+why)
		}
		return next, changes
	}
	for i := range t.Keys {
		if k := &t.Keys[i]; k.Epoch < t.Current && now.After(t.Expires(k)) {
			return t.without(k.Epoch), []string{fmt.Sprintf("ticket keys: epoch %d is dropped: its tickets have expired", k.Epoch)}
		}
	}
	return *t, nil
}

// with adds the key that is used next, in the place of the oldest if there are too many.
func (t *TicketKeys) with(now time.Time, fresh TicketSecret) TicketKeys {
	next := *t
	next.Keys = slices.Clone(t.Keys)
	if len(next.Keys) >= TicketKeysMax {
		oldest := slices.IndexFunc(next.Keys, func(k TicketKey) bool { return k.Epoch != t.Current })
		next.Keys = slices.Delete(next.Keys, oldest, oldest+1)
	}
	next.Keys = append(next.Keys, TicketKey{Epoch: t.Last() + 1, Secret: fresh, Made: now})
	return next
}

func (t *TicketKeys) without(epoch uint32) TicketKeys {
	next := *t
	next.Keys = slices.DeleteFunc(slices.Clone(t.Keys), func(k TicketKey) bool { return k.Epoch == epoch })
	return next
}

// Using returns the keys with tickets made by that of another epoch, which is among them. A later one than the one in use before is used next again.
func (t *TicketKeys) Using(now time.Time, epoch uint32) TicketKeys {
	next := TicketKeys{Current: epoch, Since: now, Keys: slices.Clone(t.Keys)}
	if last := next.Key(t.Current); last != nil {
		last.Until = now
	}
	next.Key(epoch).Until = time.Time{}
	return next
}

// Revoked returns a new key alone: no ticket before it can be read any more.
func (t *TicketKeys) Revoked(now time.Time, fresh TicketSecret) TicketKeys {
	epoch := t.Last() + 1
	return TicketKeys{Current: epoch, Since: now, Keys: []TicketKey{{Epoch: epoch, Secret: fresh, Made: now}}}
}

// Has reports whether there is a key of that epoch, or of one before.
func (t *TicketKeys) Has(epoch uint32) bool { return len(t.Keys) > 0 && t.Keys[0].Epoch <= epoch }

// Last is the newest epoch that has a key.
func (t *TicketKeys) Last() uint32 {
	if len(t.Keys) == 0 {
		return t.Current
	}
	return max(t.Current, t.Keys[len(t.Keys)-1].Epoch)
}

// Full says why no further key should be used now; nil: it may.
func (t *TicketKeys) Full() []string {
	if len(t.Keys) < TicketKeysMax {
		return nil
	}
	return []string{fmt.Sprintf("servers have %d keys already: that of epoch %d would be dropped, and sessions by it begin again", len(t.Keys), t.Keys[0].Epoch)}
}

// TicketsBehind says which servers would not be able to read tickets by a key, and which agents have keys of their own; nobody waits for these.
func (n *Nodes) TicketsBehind(fleet *model.Fleet, key *TicketKey) (behind, own []string) {
	print := string(key.Fingerprint())
	named, at := map[string]*Node{}, map[netip.Addr]*Node{}
	for i := range n.List {
		if node := &n.List[i]; node.Agent {
			named[node.Name] = node
			for _, address := range node.Addresses {
				at[address] = node
			}
		}
	}
	for i := range fleet.Services {
		s := &fleet.Services[i]
		for j := range s.Servers {
			server := &s.Servers[j]
			if s.Session != model.SessionTLS || server.State == model.StateOff {
				continue
			}
			agents := []*Node{named[server.Name], at[server.Address]}
			if agents[0] == nil && agents[1] == nil {
				behind = append(behind, fmt.Sprintf("server %s of service %s: no agent of it is connected", server.Name, s.Name))
			}
			for _, node := range agents {
				switch {
				case node == nil:
				case node.Report != nil && node.Report.OwnTickets:
					own = append(own, node.Name)
				case node.Report == nil || string(node.Report.Tickets[key.Epoch]) != print:
					behind = append(behind, fmt.Sprintf("%s does not have the key of epoch %d yet", node, key.Epoch))
				}
			}
		}
	}
	slices.Sort(behind)
	slices.Sort(own)
	return slices.Compact(behind), slices.Compact(own)
}

// ServiceTickets are the keys that the servers of one service have: no other service's follow from them.
type ServiceTickets struct {
	Current uint32             `json:"current"`
	Keys    []ServiceTicketKey `json:"keys"` // by epoch, ascending
}

// ServiceTicketKey is the key of an epoch.
type ServiceTicketKey struct {
	Epoch       uint32       `json:"epoch"`
	Secret      TicketSecret `json:"secret"`
	Fingerprint []byte       `json:"fingerprint"` // of the fleet's key
}

// Of derives the keys of a service.
func (t *TicketKeys) Of(service string) ServiceTickets {
	derived := ServiceTickets{Current: t.Current}
	for i := range t.Keys {
		k := &t.Keys[i]
		secret, err := hkdf.Key(sha256.New, k.Secret[:], nil, "ballast session tickets of "+service, len(k.Secret))
		if err != nil {
			panic(err) // of a length that no hash has
		}
		derived.Keys = append(derived.Keys, ServiceTicketKey{Epoch: k.Epoch, Secret: TicketSecret(secret), Fingerprint: k.Fingerprint()})
	}
	return derived
}

// Validate refuses what no fleet's keys are.
func (t *ServiceTickets) Validate() error {
	if len(t.Keys) == 0 || len(t.Keys) > TicketKeysMax {
		return fmt.Errorf("%d keys of session tickets: there are 1 to %d", len(t.Keys), TicketKeysMax)
	}
	current := false
	for i := range t.Keys {
		k := &t.Keys[i]
		if k.Secret == (TicketSecret{}) || len(k.Fingerprint) != FingerprintSize {
			return fmt.Errorf("the key of session tickets of epoch %d is not complete", k.Epoch)
		}
		if i > 0 && k.Epoch <= t.Keys[i-1].Epoch {
			return fmt.Errorf("keys of session tickets: epoch %d comes after %d", k.Epoch, t.Keys[i-1].Epoch)
		}
		current = current || k.Epoch == t.Current
	}
	if !current {
		return fmt.Errorf("keys of session tickets: epoch %d is in use and has none", t.Current)
	}
	return nil
}
