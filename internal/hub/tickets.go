// Keys of session tickets, which agents are told, and nobody else.
package hub

import (
	"maps"
	"slices"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/pki"
)

// ticketsFor are the keys of the services that an agent's host is a server of; those of others it forgets. The caller holds the lock.
func (h *Hub) ticketsFor(who *pki.Identity) *ballastv1.TicketKeys {
	told := &ballastv1.TicketKeys{}
	if h.tickets.Current == 0 {
		return told
	}
	for _, name := range slices.Sorted(maps.Keys(h.services)) {
		if !h.services[name].grants(who) {
			continue
		}
		keys := h.derived[name]
		if keys == nil {
			keys = api.TicketsToProto(name, h.tickets.Of(name))
			h.derived[name] = keys
		}
		told.Services = append(told.Services, keys)
	}
	return told
}

// takeTickets cuts short what an agent says of keys of tickets.
func takeTickets(told *ballastv1.KeyReport) (fingerprints map[uint32][]byte) {
	fingerprints = map[uint32][]byte{}
	for _, epoch := range slices.Sorted(maps.Keys(told.Tickets))[:min(len(told.Tickets), rotation.TicketKeysMax)] {
		if print := told.Tickets[epoch]; len(print) == rotation.FingerprintSize {
			fingerprints[epoch] = print
		}
	}
	return fingerprints
}
