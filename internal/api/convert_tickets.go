package api

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
)

// TicketsToProto writes the keys of a service's session tickets, with the secrets: for its agents.
func TicketsToProto(service string, t rotation.ServiceTickets) *ballastv1.ServiceTicketKeys {
	sent := &ballastv1.ServiceTicketKeys{Service: service, Current: t.Current}
	for i := range t.Keys {
		k := &t.Keys[i]
		sent.Keys = append(sent.Keys, &ballastv1.TicketKey{Epoch: k.Epoch, Secret: k.Secret[:], Fingerprint: k.Fingerprint})
	}
	return sent
}

// TicketsFromProto reads the keys of session tickets, by service.
func TicketsFromProto(sent *ballastv1.TicketKeys) (map[string]rotation.ServiceTickets, error) {
	tickets := map[string]rotation.ServiceTickets{}
	for _, service := range sent.GetServices() {
		read := rotation.ServiceTickets{Current: service.Current}
		for _, k := range service.Keys {
			if len(k.Secret) != len(rotation.TicketSecret{}) {
				return nil, fmt.Errorf("service %s: a key of session tickets of %d bytes: they have %d", service.Service, len(k.Secret), len(rotation.TicketSecret{}))
			}
			read.Keys = append(read.Keys, rotation.ServiceTicketKey{Epoch: k.Epoch, Secret: rotation.TicketSecret(k.Secret), Fingerprint: k.Fingerprint})
		}
		if err := read.Validate(); err != nil {
			return nil, fmt.Errorf("service %s: %w", service.Service, err)
		}
		if _, twice := tickets[service.Service]; twice {
			return nil, fmt.Errorf("service %s has keys of session tickets twice", service.Service)
		}
		tickets[service.Service] = read
	}
	return tickets, nil
}
