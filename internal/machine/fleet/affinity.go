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
	which, why := model.AffinityBreaks(from, to)
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

// affinityChange names what of model.AffinityBreaks changes.
func affinityChange(from, to *model.Service) string {
	if from.Affinity != to.Affinity {
		return fmt.Sprintf("affinity %s -> %s", from.Affinity, to.Affinity)
	}
	return strings.Join(diffFields("", slotFields, from, to), ", ")
}
