// What ClientHellos of services with session tls have shown.
package lb

import (
	"fmt"
	"strings"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/linux/verdict"
	"github.com/ballast-lb/ballast/internal/plan"
)

// SessionOutcomes returns the names of what a hello may come to, by value.
var SessionOutcomes = sync.OnceValues(func() ([]string, error) {
	types, err := types()
	if err != nil {
		return nil, err
	}
	names, err := verdict.Names(types, "session_outcome")
	if err != nil {
		return nil, err
	}
	for i := range names {
		names[i] = strings.TrimPrefix(names[i], "session_")
	}
	return names[:lbSessionOutcomeSESSION_OUTCOMES], nil
})

// Hellos returns how many of a service came to each outcome, by its value.
func (lb *LB) Hellos(service plan.Place) ([]uint64, error) {
	out := make([]uint64, lbSessionOutcomeSESSION_OUTCOMES)
	for outcome := range out {
		var perCPU []uint64
		if err := lb.objects.SessionOutcomes.Lookup(sessionCounter(service.Number, outcome), &perCPU); err != nil {
			return nil, fmt.Errorf("read hellos of service %d: %w", service.Number, err)
		}
		for _, hellos := range perCPU {
			out[outcome] += hellos
		}
	}
	return out, nil
}

func sessionCounter(service uint32, outcome int) uint32 {
	return service*uint32(lbSessionOutcomeSESSION_OUTCOMES) + uint32(outcome)
}

func (lb *LB) clearHellos(service uint32) error {
	zero := make([]uint64, ebpf.MustPossibleCPU())
	for outcome := range int(lbSessionOutcomeSESSION_OUTCOMES) {
		if err := lb.objects.SessionOutcomes.Put(sessionCounter(service, outcome), zero); err != nil {
			return err
		}
	}
	return nil
}

// TracedSession is what a traced hello has shown.
type TracedSession struct {
	Outcome  uint8
	Identity string // that names the session; empty: none of ours does
	Name     [4]byte
	Server   uint16 // id that it opens to, 0: to none
}

// identities are those of enum hello_source.
var identities = [...]string{"", "session id", "ticket", "psk"}

func tracedSession(raw *lbSessionShown) *TracedSession {
	if raw.Is == 0 {
		return nil
	}
	return &TracedSession{Outcome: raw.Outcome, Identity: identities[int(raw.Source)%len(identities)], Name: raw.Name, Server: raw.Id}
}
