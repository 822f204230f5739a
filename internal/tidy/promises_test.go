package tidy

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/tidy/promises"
)

// A promise is worth what its tests are worth: those that it names must be there.
func TestPromisesOfTestsAreWellFormedAndTheirTestsExist(t *testing.T) {
	var all []promises.Promise
	declared := map[string]bool{}
	for _, name := range files(t, "_test.go") {
		source := read(t, name)
		for _, function := range testDeclared.FindAllStringSubmatch(string(source), -1) {
			declared[function[1]] = true
		}
		found, err := promises.Of(name, source)
		if err != nil {
			t.Error(err)
		}
		all = append(all, found...)
	}
	if len(all) < 250 {
		t.Errorf("only %d promises", len(all))
	}
	stated := map[string]string{}
	for _, promise := range all {
		if other, ok := stated[promise.Sentence]; ok {
			t.Errorf("%s: the promise %q stands at %s, too: name this test there with Also held by", promise.Tests[0], promise.Sentence, other)
		}
		stated[promise.Sentence] = promise.Tests[0]
		for _, test := range promise.Tests {
			if !declared[test] {
				t.Errorf("%s: there is no test %s, which holds %q", promise.File, test, promise.Sentence)
			}
		}
	}
}

// Reports of others are the table that make evidence prints: one row each, and these at least.
func TestWhatUsersOfOthersHaveReportedHasATest(t *testing.T) {
	tests := map[string]string{}
	for _, name := range files(t, "_test.go") {
		reports, err := promises.Reports(name, read(t, name))
		if err != nil {
			t.Error(err)
		}
		for _, report := range reports {
			if other := tests[report.Issue]; other != "" {
				t.Errorf("%s: %s is shown by %s, too", report.Test, report.Issue, other)
			}
			tests[report.Issue] = report.Test
		}
	}
	for _, wanted := range []string{"kubernetes/kubernetes#129605", "cilium/cilium#23761", "cilium/cilium#27726", "cilium/cilium#29667", "cilium/cilium#48271",
		"cilium/cilium#48050", "loxilb-io/loxilb#1020", "github/glb-director#139",
		"facebookincubator/katran#13", "facebookincubator/katran#20", "xdp-project/xdp-tools#400"} {
		if tests[wanted] == "" {
			t.Errorf("no test shows %s", wanted)
		}
	}
}
