// Package doctor finds what breaks set-ups, before packets do. Facts are gathered from the kernel, the fleet's file and
// the running daemon (gather*.go); what they mean is decided by pure functions of the facts (judge*.go).
package doctor

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/model"
)

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

// merged makes findings that differ in their subject alone one of all their subjects, where the first of them is.
func merged(findings []Finding) (out []Finding) {
	type fault struct {
		check, found, remedy string
		severity             Severity
	}
	subjects := map[fault][]string{}
	key := func(f *Finding) fault { return fault{f.Check, f.Found, f.Remedy, f.Severity} }
	for i := range findings {
		if f := &findings[i]; f.Severity != OK && f.Subject != "" {
			subjects[key(f)] = append(subjects[key(f)], f.Subject)
		}
	}
	for _, f := range findings {
		same := subjects[key(&f)]
		if len(same) > 1 && same[0] != f.Subject {
			continue
		}
		if len(same) > 1 {
			f.Subject = fmt.Sprintf("%d: %s", len(same), model.Some(same))
		}
		out = append(out, f)
	}
	return out
}
