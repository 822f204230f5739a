// Package doctor finds what breaks set-ups, before packets do. Facts are gathered from the kernel, the fleet's file and
// the running daemon (gather*.go); what they mean is decided by pure functions of the facts (judge*.go).
package doctor

import "fmt"

// Severity says how bad a finding is.
type Severity uint8

// Severities, from good to bad.
const (
	OK      Severity = iota
	Warning          // works, but slower, or not in every case
	Problem          // packets or connections will be lost, or a daemon will refuse to start
)

var severityNames = [...]string{OK: "ok", Warning: "warning", Problem: "problem"}

func (s Severity) String() string { return severityNames[s] }

// MarshalText returns ok, warning or problem.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (s *Severity) UnmarshalText(text []byte) error {
	for i, name := range severityNames {
		if name == string(text) {
			*s = Severity(i)
			return nil
		}
	}
	return fmt.Errorf("severity %q: use ok, warning or problem", text)
}

// A Finding is what one check found.
type Finding struct {
	Check    string   `json:"check"`
	Subject  string   `json:"subject,omitempty"` // the interface, service or server that it is about
	Severity Severity `json:"severity"`
	Found    string   `json:"found"`
	Remedy   string   `json:"remedy,omitempty"` // empty when ok
}

// Count returns how many findings are of a severity.
func Count(findings []Finding, s Severity) (n int) {
	for _, f := range findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}
