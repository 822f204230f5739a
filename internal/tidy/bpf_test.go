// The layers of the BPF programs (bpf/README.md), as their includes have them.
package tidy

import (
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// bpfLayers are the folders of bpf/ from the lowest to the highest: a header includes those of its own and of lower ones.
var bpfLayers = []string{
	"wire",
	"lb/packet", "lb/carrier", "lb/state", "lb/dispatch", "lb/affinity", "lb/ladder", "lb/send", "lb/walk",
	"server", "server/socket", "server/flow", "server/timestamp", "server/accept", "server/takeover", "server/mptcp", "server/tunnel", "server/walk",
	"check", "bfd", "segment", "link", "bench",
}

var included = regexp.MustCompile(`(?m)^\s*#\s*include\s*"([^"]*)"`)

// bpfIncludes has the includes of every source under bpf/, by paths from there.
func bpfIncludes(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for _, name := range files(t, ".c", ".h") {
		ours, is := strings.CutPrefix(name, "bpf/")
		if !is {
			continue
		}
		found[ours] = nil
		for _, match := range included.FindAllSubmatch(read(t, name), -1) {
			found[ours] = append(found[ours], string(match[1]))
		}
	}
	return found
}

// bpfProgram is the program that a source belongs to: lb, server, wire for both, or another one.
func bpfProgram(name string) string {
	first, _, _ := strings.Cut(name, "/")
	return strings.TrimSuffix(first, ".bpf.c")
}

// wrongIncludes says which includes go up, lead to another program, or to nothing.
func wrongIncludes(all map[string][]string, exists func(string) bool) (problems []string) {
	for name, includes := range all {
		at := slices.Index(bpfLayers, path.Dir(name))
		if at < 0 && path.Dir(name) != "." {
			problems = append(problems, name+" is in a folder that has no layer in bpfLayers")
			continue
		}
		for _, other := range includes {
			below := slices.Index(bpfLayers, path.Dir(other))
			switch program := bpfProgram(other); {
			case below < 0 || !exists(other):
				problems = append(problems, name+" includes "+other+": write an existing header's path from bpf/")
			case program != "wire" && program != bpfProgram(name):
				problems = append(problems, name+" includes "+other+", which is of another program: what both need stands in wire")
			case at >= 0 && below > at:
				problems = append(problems, name+" includes "+other+" of a higher layer")
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// circle returns headers that include each other, each the next one; the same ones each time.
func circle(all map[string][]string) []string {
	done := map[string]bool{}
	var follow func(name string, trail []string) []string
	follow = func(name string, trail []string) []string {
		if at := slices.Index(trail, name); at >= 0 {
			return append(trail[at:], name)
		}
		if done[name] {
			return nil
		}
		done[name] = true
		for _, other := range all[name] {
			if found := follow(other, append(slices.Clone(trail), name)); found != nil {
				return found
			}
		}
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if found := follow(name, nil); found != nil {
			return found
		}
	}
	return nil
}

func TestHeadersIncludeTheirOwnLayerAndLowerOnes(t *testing.T) {
	all := bpfIncludes(t)
	exists := func(name string) bool {
		_, err := os.Stat(path.Join(root, "bpf", name))
		return err == nil || name == "wire/choices.h" // which is generated
	}
	for _, problem := range wrongIncludes(all, exists) {
		t.Error(problem)
	}
	if found := circle(all); found != nil {
		t.Errorf("headers include each other: %s", strings.Join(found, " -> "))
	}
	for name := range all {
		if strings.HasSuffix(name, ".h") && strings.Count("\n"+string(read(t, "bpf/"+name)), "\n#pragma once\n") != 1 {
			t.Errorf("bpf/%s has no #pragma once", name)
		}
	}
}

const (
	maxProgramLines = 150
	maxCColumns     = 120 // with tabs of 8; .clang-format breaks code there, but not a comment behind it
)

func TestCIsNarrow(t *testing.T) {
	for _, name := range files(t, ".c", ".h") {
		for i, line := range strings.Split(string(read(t, name)), "\n") {
			if columns := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "        ")); columns > maxCColumns {
				t.Errorf("%s:%d: %d columns, at most %d", name, i+1, columns, maxCColumns)
			}
		}
	}
}

// A program's file has its includes and its SEC() functions; what they do is in headers, by concern.
func TestProgramsAreShort(t *testing.T) {
	for _, name := range files(t, ".bpf.c") {
		if lines := strings.Count(string(read(t, name)), "\n"); lines > maxProgramLines {
			t.Errorf("%s has %d lines: move functions to headers in bpf/%s, at most %d", name, lines, bpfProgram(path.Base(name)), maxProgramLines)
		}
	}
}

func TestWrongIncludesAreFound(t *testing.T) {
	have := wrongIncludes(map[string][]string{
		"wire/a.h":          {"kernel.h"},
		"lb/state/b.h":      {"lb/send/c.h", "wire/a.h", "wire/none.h"},
		"lb/other/d.h":      nil,
		"server.bpf.c":      {"lb/state/b.h", "wire/a.h"},
		"server/accept/e.h": {"server/socket/f.h"},
	}, func(name string) bool { return name != "wire/none.h" })
	want := []string{
		"lb/other/d.h is in a folder that has no layer in bpfLayers",
		"lb/state/b.h includes lb/send/c.h of a higher layer",
		"lb/state/b.h includes wire/none.h: write an existing header's path from bpf/",
		"server.bpf.c includes lb/state/b.h, which is of another program: what both need stands in wire",
		"wire/a.h includes kernel.h: write an existing header's path from bpf/",
	}
	if !slices.Equal(have, want) {
		t.Errorf("have\n%s", strings.Join(have, "\n"))
	}
	if found := circle(map[string][]string{"a": {"b"}, "b": {"c", "d"}, "c": nil, "d": {"b"}}); !slices.Equal(found, []string{"b", "d", "b"}) {
		t.Errorf("circle is %q", found)
	}
}

// A header that only compiles after others hides what it needs, from people and from tools.
func TestHeadersCompileAlone(t *testing.T) {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is not installed: make deps")
	}
	if _, err := os.Stat(path.Join(root, "bpf/wire/choices.h")); err != nil {
		t.Skip("bpf/wire/choices.h is not there: make generate")
	}
	flags := strings.Fields(string(read(t, "bpf/compile_flags.txt")))
	var compilers sync.WaitGroup
	free := make(chan struct{}, runtime.NumCPU())
	for name := range bpfIncludes(t) {
		if !strings.HasSuffix(name, ".h") {
			continue
		}
		compilers.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			compile := exec.Command(clang, append(slices.Clone(flags), "-Werror", "-Wno-pragma-once-outside-header", "-fsyntax-only", name)...)
			compile.Dir = path.Join(root, "bpf")
			if out, err := compile.CombinedOutput(); err != nil {
				t.Errorf("bpf/%s does not compile alone: %v\n%s", name, err, out)
			}
		})
	}
	compilers.Wait()
}
