// What becomes of connections that live when the affinity of their service changes, or with affinity hash the table of slots.

package fleet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/schema"
)

// slotFields are what the connections of affinity hash are found by.
var slotFields = schema.Named(schema.Service, "dispatch", "fallback", "table_slots", "placement.over", "placement.ipv4_prefix", "placement.ipv6_prefix")

// otherOwner are the connections that the present table of slots does not find.
const otherOwner = "those of slots that have had another server since they began"

// AffinityBreaks tells which connections of a service break when its affinity, or with hash its table of slots, changes, and why; empty: none does.
//
// Three facts decide. Cookies are read alike with affinity cookie and table. Where nothing is known of a connection, local tables and replicas go by
// placement, which is where connections of hash are. And what packets carry that is not ours names servers by chance.
func AffinityBreaks(from, to *model.Service) (which, why string) {
	const all = "all"
	switch {
	case from.Affinity == model.AffinityHash && to.Affinity == model.AffinityHash:
		return slotsBreak(from, to)
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
		return "some", otherOwner
	}
}

// slotsBreak is AffinityBreaks of affinity hash, whose connections are where the table of slots has them. With second chance the servers of a slot before, two of them,
// are asked, also when the table has become another one.
func slotsBreak(from, to *model.Service) (which, why string) {
	same := tableOfSlots(from) == tableOfSlots(to) && from.TableSlots == to.TableSlots
	chance := to.Fallback == model.FallbackSecondChance
	switch {
	case len(from.Servers) == 1 && len(to.Servers) == 1:
		return "", ""
	case from.Placement != to.Placement:
		return "most", "the table of slots is asked for another part of their addresses"
	case chance && to.TableSlots < from.TableSlots:
		return "some", "a slot that was several knows two servers before"
	case chance:
		return "", ""
	case !same:
		return "most", "the new table of slots has them at other servers, and no second chance finds them"
	case from.Fallback == model.FallbackSecondChance:
		return "some", otherOwner
	default:
		return "", ""
	}
}

// tableOfSlots is the policy by which the table of slots of a service is made.
func tableOfSlots(s *model.Service) model.Dispatch {
	if s.Dispatch.Placed() {
		return s.Dispatch
	}
	return model.DispatchMaglev
}

// samePlacement reports whether the table of slots, by which both were placed or are found, is the same, as long as the servers are.
func samePlacement(from, to *model.Service) bool {
	placed := from.Dispatch.Placed() && from.Dispatch != model.DispatchChoices
	chance := from.Fallback != model.FallbackSecondChance || to.Fallback == model.FallbackSecondChance
	return placed && chance && tableOfSlots(from) == tableOfSlots(to) && from.TableSlots == to.TableSlots && from.Placement == to.Placement
}

// otherVIP is how what a change would break is kept.
const otherVIP = "to keep them, have a second service at another vip take new ones until they have ended"

// Breaking tells which connections break, or may, because the affinity of their service, its table of slots or addresses of its servers change from a to b, one
// line each; nil: none does, or none lives. A service under another name that takes connections over is asked about as the same one is. Both have their
// defaults.
func Breaking(a, b *model.Fleet, living livingOf) (lines []string) {
	after := index(b.Services, serviceName)
	for i := range a.Services {
		from := &a.Services[i]
		if to := after[from.Name]; to != nil && from.SharesVIP(to) && len(from.Servers) > 0 {
			if line := affinityDanger(from, to, living); line != "" {
				lines = append(lines, line)
			}
			if line := moveDanger(from, to, living); line != "" {
				lines = append(lines, line)
			}
		}
		lines = append(lines, heirDangers(from, b, living)...)
	}
	return lines
}

// heirDangers are the dangers of Breaking by services of b under other names that take over connections of a service. One that takes only some of its ports may
// well have other servers.
func heirDangers(from *model.Service, b *model.Fleet, living livingOf) (lines []string) {
	if len(from.Servers) == 0 {
		return nil
	}
	renamed := !slices.ContainsFunc(b.Services, func(s model.Service) bool { return s.Name == from.Name })
	for i := range b.Services {
		to := &b.Services[i]
		if to.Name == from.Name || !from.SharesVIP(to) || !takesOver(from, to) {
			continue
		}
		if line := affinityDanger(from, to, living); line != "" {
			lines = append(lines, line)
		}
		if line := moveDanger(from, to, living); line != "" && renamed {
			lines = append(lines, line)
		}
	}
	return lines
}

func affinityDanger(from, to *model.Service, living livingOf) string {
	which, why := AffinityBreaks(from, to)
	if which == "" {
		return ""
	}
	had := connectionsOf(from, living)
	if had.Known && had.Exact && had.Live == 0 {
		return ""
	}
	return fmt.Sprintf("service %s: %s: of %s %s break: %s: %s", heirName(from, to), affinityChange(from, to), had, which, why, otherVIP)
}

// heirName is the name of the service that has the connections of another.
func heirName(from, to *model.Service) string {
	if from.Name == to.Name {
		return to.Name
	}
	return to.Name + " (was " + from.Name + ")"
}

// affinityChange names what of AffinityBreaks changes.
func affinityChange(from, to *model.Service) string {
	if from.Affinity != to.Affinity {
		return fmt.Sprintf("affinity %s -> %s", from.Affinity, to.Affinity)
	}
	return strings.Join(diffFields("", slotFields, from, to), ", ")
}
