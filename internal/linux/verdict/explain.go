package verdict

import (
	"regexp"
	"strings"

	"github.com/ballast-lb/ballast/bpf/lb/state"
	"github.com/ballast-lb/ballast/bpf/server"
)

// Explanation is what a counter counts, and when an operator should worry.
type Explanation struct {
	Name    string `json:"counter"`
	Role    string `json:"role"` // whose counter it is: lb, agent
	Meaning string `json:"meaning"`
	Worry   string `json:"worry_when,omitempty"` // empty: never
}

// Explanations returns the counters of load balancers and agents in the order of their declaration. The texts are the comments of the
// verdicts: "NAME, /* meaning. Worry: when */".
func Explanations() []Explanation {
	return append(explanations("lb", state.Verdicts), explanations("agent", server.Verdicts)...)
}

var (
	enumeration = regexp.MustCompile(`(?ms)^enum (?:agent_)?verdict \{$(.*?)^\};$`)
	enumerator  = regexp.MustCompile(`(?ms)^\t([A-Z_]+),(?: /\* (.*?) \*/)?$`)
)

func explanations(role, header string) []Explanation {
	var found []Explanation
	for _, declared := range enumerator.FindAllStringSubmatch(enumeration.FindStringSubmatch(header)[1], -1) {
		if strings.HasSuffix(declared[1], "_CONTINUE") || strings.HasSuffix(declared[1], "VERDICTS") {
			continue // no way out
		}
		meaning, worry, _ := strings.Cut(strings.Join(strings.Fields(declared[2]), " "), ". Worry: ")
		found = append(found, Explanation{strings.ToLower(declared[1]), role, meaning, worry})
	}
	return found
}
