// Keys of session tickets, which agents are sent, and nobody else.
package hub

import (
	"maps"
	"reflect"
	"slices"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/pki"
)

// serviceTickets are the keys of session tickets, of which those of a service are derived when an agent is first sent them. They are
// part of desiredState.
type serviceTickets struct {
	keys    rotation.TicketKeys
	derived map[string]*ballastv1.ServiceTicketKeys // by service
}

// set takes the keys and reports whether they are other ones.
func (t *serviceTickets) set(keys rotation.TicketKeys) (changed bool) {
	if reflect.DeepEqual(keys, t.keys) {
		return false
	}
	t.keys, t.derived = keys, map[string]*ballastv1.ServiceTicketKeys{}
	return true
}

// of are the keys of the services that an agent's host is a server of; those of others it forgets.
func (t *serviceTickets) of(who *pki.Identity, services map[string]*service) *ballastv1.TicketKeys {
	list := &ballastv1.TicketKeys{}
	if t.keys.Current == 0 {
		return list
	}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		if !services[name].grants(who) {
			continue
		}
		keys := t.derived[name]
		if keys == nil {
			keys = api.TicketsToProto(name, t.keys.Of(name))
			t.derived[name] = keys
		}
		list.Services = append(list.Services, keys)
	}
	return list
}

// ticketFingerprints cuts short what an agent reports of keys of tickets.
func ticketFingerprints(reported *ballastv1.KeyReport) (fingerprints map[uint32][]byte) {
	fingerprints = map[uint32][]byte{}
	for _, epoch := range slices.Sorted(maps.Keys(reported.Tickets))[:min(len(reported.Tickets), rotation.TicketKeysMax)] {
		if print := reported.Tickets[epoch]; len(print) == rotation.FingerprintSize {
			fingerprints[epoch] = print
		}
	}
	return fingerprints
}
