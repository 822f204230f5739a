package config

import (
	"os"
	"regexp"
	"testing"
)

const exampleKeys = "keys: {placement: 000102030405060708090a0b0c0d0e0f, current: 1, cookie: {1: 00112233445566778899aabbccddeeff}}\n"

// Whoever copies an example into a file has one that nodes take; those of what needs controllers have no ids, which controllers give.
func TestExamplesInTheDocumentsAreValid(t *testing.T) {
	example := regexp.MustCompile("(?ms)^```\n(services:\n.*?)^```$")
	for name, byNodes := range map[string]bool{"mptcp": true, "quic": true, "replicas": false} {
		text, err := os.ReadFile("../../docs/features/" + name + ".md")
		if err != nil {
			t.Fatal(err)
		}
		found := example.FindAllStringSubmatch(string(text), -1)
		if len(found) == 0 {
			t.Errorf("%s.md has no example", name)
		}
		for _, block := range found {
			if byNodes {
				_, err = Parse(name, []byte(exampleKeys+block[1]))
			} else if draft, refused := ParseDraft(name, []byte(block[1])); refused != nil {
				err = refused
			} else {
				err = draft.Validate()
			}
			if err != nil {
				t.Errorf("%s.md: %v", name, err)
			}
		}
	}
}
