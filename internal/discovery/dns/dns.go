// Package dns asks the DNS for the servers of a service: addresses of a name, or of the targets of its SRV records (RFC 2782).
package dns

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"github.com/ballast-lb/ballast/internal/machine/discovery"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	askTimeout = 20 * time.Second // of all queries of one question
	maxTargets = 256              // of SRV records
	atOnce     = 8                // targets that are resolved
	longest    = time.Hour        // a TTL above that says nothing more
)

// Source is a name that is asked for.
type Source struct {
	of     model.ServerSource
	client client
}

// New returns what asks for a name.
func New(of model.ServerSource) *Source {
	return &Source{of, client{resolver: of.Resolver, overTCP: of.Transport == model.TransportTCP, file: "/etc/resolv.conf", timeout: queryTimeout}}
}

// Ask resolves the name. Its answer is all that the name has, in both families where both are asked for, or none: what one query of several has not been
// answered for is not known to be gone. wait is the smallest TTL.
func (s *Source) Ask(ctx context.Context) (answer discovery.Answer, wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	ttl := newTTL()
	if s.of.Record == model.RecordSRV {
		answer = s.services(ctx, ttl)
	} else {
		answer = s.hosts(ctx, ttl)
	}
	return answer, ttl.least
}

func (s *Source) hosts(ctx context.Context, ttl *ttl) (answer discovery.Answer) {
	addresses, err := s.addresses(ctx, s.of.Name, ttl)
	if err != nil {
		return discovery.Answer{Err: err}
	}
	for _, address := range addresses {
		answer.Servers = append(answer.Servers, discovery.Found{Address: address, Weight: 1})
	}
	return answer
}

// services takes the targets of the lowest priority: the others are for when none of these is reached, which checks of health are for.
func (s *Source) services(ctx context.Context, ttl *ttl) (answer discovery.Answer) {
	records, err := s.client.records(ctx, s.of.Name, dns.TypeSRV, ttl)
	if err != nil {
		return discovery.Answer{Err: err}
	}
	var targets []*dns.SRV
	for _, record := range records {
		targets = append(targets, record.(*dns.SRV))
	}
	first := slices.MinFunc(targets, func(a, b *dns.SRV) int { return cmp.Compare(a.Priority, b.Priority) })
	targets = slices.DeleteFunc(targets, func(t *dns.SRV) bool { return t.Priority != first.Priority })
	switch {
	case len(targets) == 1 && first.Target == ".":
		return discovery.Answer{Err: fmt.Errorf("%s says that there is no such service (SRV target .)", s.of.Name)}
	case len(targets) > maxTargets:
		return discovery.Answer{Err: fmt.Errorf("%s has %d SRV records, at most %d are taken", s.of.Name, len(targets), maxTargets)}
	}
	heaviest := slices.MaxFunc(targets, func(a, b *dns.SRV) int { return cmp.Compare(a.Weight, b.Weight) }).Weight
	var mutex sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, target := range targets {
		group.Go(func() error {
			addresses, err := s.addresses(ctx, target.Target, ttl)
			mutex.Lock()
			defer mutex.Unlock()
			if gone := new(Nothing); asNothing(err, &gone) {
				answer.Notes = append(answer.Notes, gone.Error())
				return nil
			}
			for _, address := range addresses {
				answer.Servers = append(answer.Servers, discovery.Found{Address: address, Port: target.Port, Weight: weight(target.Weight, heaviest)})
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return discovery.Answer{Err: err}
	}
	slices.Sort(answer.Notes)
	if len(answer.Servers) == 0 {
		return discovery.Answer{Err: fmt.Errorf("none of the SRV targets of %s has an address: %s", s.of.Name, model.Some(answer.Notes))}
	}
	return answer
}

// weight is that of a record among others whose heaviest is known. 0 is a small one (RFC 2782), and equal ones are equal.
func weight(of, heaviest uint16) uint16 {
	if heaviest > model.MaxWeight {
		of = uint16(uint32(of) * model.MaxWeight / uint32(heaviest))
	}
	return max(of, 1)
}

// addresses are those of a name in all families that are asked for. Where one family has none the other's are all.
func (s *Source) addresses(ctx context.Context, name string, ttl *ttl) (addresses []netip.Addr, err error) {
	var nothing error
	for _, kind := range s.kinds() {
		records, err := s.client.records(ctx, name, kind, ttl)
		if gone := new(Nothing); asNothing(err, &gone) {
			nothing = err
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, record := range records {
			var ip []byte
			switch r := record.(type) {
			case *dns.A:
				ip = r.A.To4()
			case *dns.AAAA:
				ip = r.AAAA
			}
			if address, ok := netip.AddrFromSlice(ip); ok {
				addresses = append(addresses, address)
			}
		}
	}
	if len(addresses) == 0 {
		return nil, nothing
	}
	return addresses, nil
}

func (s *Source) kinds() []uint16 {
	switch s.of.Family {
	case model.FamilyIPv4:
		return []uint16{dns.TypeA}
	case model.FamilyIPv6:
		return []uint16{dns.TypeAAAA}
	}
	return []uint16{dns.TypeA, dns.TypeAAAA}
}

// ttl is the smallest that was seen. It is safe for concurrent use.
type ttl struct {
	mutex sync.Mutex
	least time.Duration
}

func newTTL() *ttl { return &ttl{least: longest} }

func (t *ttl) see(seconds uint32) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.least = min(t.least, time.Duration(seconds)*time.Second)
}
