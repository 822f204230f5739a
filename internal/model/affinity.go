// What becomes of connections that live when the affinity of their service changes, or with affinity hash the table of slots.

package model

// otherOwner are the connections that the present table of slots does not find.
const otherOwner = "those of slots that have had another server since they began"

// AffinityBreaks tells which connections of a service break when its affinity, or with hash its table of slots, changes, and why; empty: none does.
//
// Three facts decide. Cookies are read alike with affinity cookie and table. Where nothing is known of a connection, local tables and replicas go by
// placement, which is where connections of hash are. And what packets carry that is not ours names servers by chance.
func AffinityBreaks(from, to *Service) (which, why string) {
	const all = "all"
	switch {
	case from.Affinity == AffinityHash && to.Affinity == AffinityHash:
		return slotsBreak(from, to)
	case from.Affinity == to.Affinity, from.Affinity.Cookies() && to.Affinity.Cookies():
		return "", ""
	case to.Affinity.Carried():
		return all, "what their packets carry names servers by chance"
	case to.Affinity == AffinityQUIC:
		return all, "their connection ids may name servers by chance"
	case from.Affinity.Cookies() && from.Return == ReturnThrough:
		return all, "their clients have timestamps that load balancers have written, and would drop the servers' own"
	case !samePlacement(from, to):
		return all, "only those are found that the table of slots has at their server"
	case from.Affinity == AffinityHash && (to.Protocol == ProtocolTCP || from.Dispatch == to.Dispatch):
		return "", ""
	default:
		return "some", otherOwner
	}
}

// slotsBreak is AffinityBreaks of affinity hash, whose connections are where the table of slots has them. With second chance the servers of a slot before, two of them,
// are asked, also when the table has become another one.
func slotsBreak(from, to *Service) (which, why string) {
	same := tableOfSlots(from) == tableOfSlots(to) && from.TableSlots == to.TableSlots
	chance := to.Fallback == FallbackSecondChance
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
	case from.Fallback == FallbackSecondChance:
		return "some", otherOwner
	default:
		return "", ""
	}
}

// tableOfSlots is the policy by which the table of slots of a service is made.
func tableOfSlots(s *Service) Dispatch {
	if s.Dispatch.Placed() {
		return s.Dispatch
	}
	return DispatchMaglev
}

// samePlacement reports whether the table of slots, by which both were placed or are found, is the same, as long as the servers are.
func samePlacement(from, to *Service) bool {
	placed := from.Dispatch.Placed() && from.Dispatch != DispatchChoices
	chance := from.Fallback != FallbackSecondChance || to.Fallback == FallbackSecondChance
	return placed && chance && tableOfSlots(from) == tableOfSlots(to) && from.TableSlots == to.TableSlots && from.Placement == to.Placement
}
