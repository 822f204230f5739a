// What becomes of connections that live when the affinity of their service changes.

package fleet

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/model"
)

// affinityBreaks tells which connections of a service break when its affinity changes, and why; empty: none does.
//
// Three facts decide. Cookies are read alike with affinity cookie and table. Where nothing is known of a connection, local tables and replicas go by
// placement, which is where connections of hash are. And what packets carry that is not ours names servers by chance.
func affinityBreaks(from, to *model.Service) (which, why string) {
	const all = "all"
	switch {
	case from.Affinity == to.Affinity, from.Affinity.Cookies() && to.Affinity.Cookies():
		return "", ""
	case to.Affinity.Carried():
		return all, "what their packets carry names servers by chance"
	case to.Affinity == model.AffinityQUIC:
		return all, "their connection ids may name servers by chance"
	case from.Affinity.Cookies() && from.Return == model.ReturnThrough:
		return all, "their clients have timestamps that load balancers have written, and would drop the servers' own"
	case !samePlacement(from, to):
		return all, "only those are found that the table of slots has at their server"
	case from.Affinity == model.AffinityHash && (to.Protocol == model.ProtocolTCP || from.Dispatch == to.Dispatch):
		return "", ""
	default:
		return "some", "those of slots that have had another server since they began"
	}
}

// samePlacement reports whether the table of slots, by which both were placed or are found, is the same, as long as the servers are.
func samePlacement(from, to *model.Service) bool {
	table := func(s *model.Service) model.Dispatch {
		if s.Dispatch.Placed() {
			return s.Dispatch
		}
		return model.DispatchMaglev
	}
	placed := from.Dispatch.Placed() && from.Dispatch != model.DispatchChoices
	chance := from.Fallback != model.FallbackSecondChance || to.Fallback == model.FallbackSecondChance
	return placed && chance && table(from) == table(to) && from.TableSlots == to.TableSlots && from.Placement == to.Placement
}

// otherVIP is how what a change would break is kept.
const otherVIP = "to keep them, have a second service at another vip take new ones until they have ended"

// AffinityDangers tells which connections break because the affinity of their service changes from a to b, one line each; nil: none does, or none
// lives. A service under another name that takes connections over is asked about as the same one is. Both have their defaults.
func AffinityDangers(a, b *model.Fleet, living livingOf) (lines []string) {
	after := index(b.Services, serviceName)
	for i := range a.Services {
		from := &a.Services[i]
		if to := after[from.Name]; to != nil && from.SharesVIP(to) && len(from.Servers) > 0 {
			if line := affinityDanger(from, to, living); line != "" {
				lines = append(lines, line)
			}
		}
		lines = append(lines, heirDangers(from, b, living)...)
	}
	return lines
}

// heirDangers are the affinity dangers of services of b under other names that take over connections of a service.
func heirDangers(from *model.Service, b *model.Fleet, living livingOf) (lines []string) {
	if len(from.Servers) == 0 {
		return nil
	}
	for i := range b.Services {
		to := &b.Services[i]
		if to.Name == from.Name || !from.SharesVIP(to) || !takesOver(from, to) {
			continue
		}
		if line := affinityDanger(from, to, living); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

func affinityDanger(from, to *model.Service, living livingOf) string {
	which, why := affinityBreaks(from, to)
	if which == "" {
		return ""
	}
	had := connectionsOf(from, living)
	if had.Known && had.Exact && had.Live == 0 {
		return ""
	}
	name := to.Name
	if from.Name != to.Name {
		name += " (was " + from.Name + ")"
	}
	return fmt.Sprintf("service %s: affinity %s -> %s: of %s %s break: %s: %s", name, from.Affinity, to.Affinity, had, which, why, otherVIP)
}
