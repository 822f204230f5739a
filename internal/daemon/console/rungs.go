package console

import "strings"

// rungs are groups of verdicts, as the chart of how packets find their server stacks them.
var rungs = []string{"new", "cookie", "table", "session", "hash", "fallback", "other", "returned", "dropped"}

// rungOf are the verdicts of packets to servers.
var rungOf = map[string]string{
	"forwarded_new":              "new",
	"forwarded_stripped":         "new",
	"forwarded_by_cookie":        "cookie",
	"forwarded_by_older_key":     "cookie",
	"forwarded_by_port":          "cookie",
	"forwarded_icmp_by_cookie":   "cookie",
	"forwarded_by_table":         "table",
	"forwarded_added":            "table",
	"forwarded_by_scrubber":      "table",
	"forwarded_by_local_table":   "table",
	"forwarded_by_replica":       "table",
	"forwarded_by_closing":       "table",
	"forwarded_by_session":       "session",
	"forwarded_starting":         "session",
	"forwarded_by_hash":          "hash",
	"forwarded_by_history":       "hash",
	"forwarded_table_full":       "fallback",
	"forwarded_unknown":          "fallback",
	"forwarded_no_node":          "fallback",
	"forwarded_no_timestamp":     "fallback",
	"forwarded_bad_cookie":       "fallback",
	"forwarded_no_echo":          "fallback",
	"forwarded_reset":            "fallback",
	"forwarded_bad_options":      "fallback",
	"forwarded_icmp_by_fallback": "fallback",
	"forwarded_to_predecessor":   "other",
	"forwarded_fragment":         "other",
	"forwarded_in_fragments":     "other",
}

// RungOf is the group of a verdict; empty: it is of no packet to or from a server.
func RungOf(verdict string) string {
	if rung := rungOf[verdict]; rung != "" {
		return rung
	}
	kind, _, _ := strings.Cut(verdict, "_")
	switch kind {
	case "forwarded":
		return "other"
	case "returned", "dropped":
		return kind
	}
	return ""
}
