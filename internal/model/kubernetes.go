package model

import (
	"regexp"
	"strings"
)

// Services that ballast-kube keeps are named [PREFIX:]NAMESPACE:NAME:PROTOCOL in a fleet, of a Gateway's listener with :PORT. People read and write
// these with slashes, as Kubernetes has it: default/web/tcp. No name of a fleet has a slash, so that each form is of one service.
var (
	words      = regexp.MustCompile(`[A-Za-z0-9._-]+(?::[A-Za-z0-9._-]+)+`)
	kubernetes = regexp.MustCompile(`^[A-Za-z0-9._-]+:(?:[A-Za-z0-9._-]+:){1,2}(?:tcp|udp)(?::[0-9]{1,5})?$`)
	shortened  = regexp.MustCompile(`^.{52}\.[0-9a-f]{10}$`) // a name that is too long for a fleet
)

// ForPeople returns a text with the names of Kubernetes' services as people read them.
func ForPeople(text string) string {
	if !strings.Contains(text, ":") {
		return text
	}
	return words.ReplaceAllStringFunc(text, func(word string) string {
		name := strings.TrimRight(word, ".") // of a sentence
		if !kubernetes.MatchString(name) && !shortened.MatchString(name) {
			return word
		}
		return strings.ReplaceAll(word, ":", "/")
	})
}

// FromPeople is the inverse of ForPeople, for one name.
func FromPeople(name string) string { return strings.ReplaceAll(name, "/", ":") }
