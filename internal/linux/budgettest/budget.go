// Package budgettest measures what programs leave of the verifier's room.
package budgettest

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"
)

// Half of what the verifier walks, and what leaves two frames of the least size free of its 512 bytes: other kernels' verifiers and the next
// change need room, too.
const (
	verifierBudget = 500_000
	stackBudget    = 448
	stackUnit      = 32 // that verifiers round frames up to; newer ones to less
)

// Check loads the programs of a collection. `make test-kernels` makes its table of the lines that begin with "program".
func Check(t *testing.T, load func() (*ebpf.CollectionSpec, error)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	spec, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range spec.Maps {
		if m.MaxEntries > 4096 { // what a map holds is nothing to the verifier
			m.MaxEntries = 4096
		}
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
	if err != nil {
		t.Fatalf("load: %+v", err)
	}
	defer collection.Close()
	for _, name := range slices.Sorted(maps.Keys(collection.Programs)) {
		program := collection.Programs[name]
		info, err := program.Info()
		if err != nil {
			t.Fatal(err)
		}
		walked, known := info.VerifiedInstructions()
		stack, err := deepestStack(spec.Programs[name], program.VerifierLog)
		if err != nil || !known {
			t.Fatalf("%s: %v: %s", name, err, program.VerifierLog)
		}
		fmt.Printf("program %s %d %d\n", name, walked, stack)
		if walked > verifierBudget {
			t.Errorf("%s: the verifier walks %d instructions, more than %d", name, walked, verifierBudget)
		}
		if stack > stackBudget {
			t.Errorf("%s: a chain of calls takes %d bytes of stack, more than %d", name, stack, stackBudget)
		}
	}
}

// The verifier tells the frame of each function, in the order in which they are loaded: all in one line, or since Linux 7.3 one by one.
var (
	stackDepths = regexp.MustCompile(`(?m)^stack depth ([0-9+]+)$`)
	subprograms = regexp.MustCompile(`(?m)^subprog \d+ .* stack (\d+)$`)
)

func frames(log string) (frames []string) {
	if match := stackDepths.FindStringSubmatch(log); match != nil {
		return strings.Split(match[1], "+")
	}
	for _, match := range subprograms.FindAllStringSubmatch(log, -1) {
		frames = append(frames, match[1])
	}
	return frames
}

// deepestStack is the longest chain of calls, in bytes.
func deepestStack(spec *ebpf.ProgramSpec, log string) (int, error) {
	frames := frames(log)
	var functions []string
	calls := map[string][]string{}
	for i := range spec.Instructions {
		instruction := &spec.Instructions[i]
		if btf.FuncMetadata(instruction) != nil {
			functions = append(functions, instruction.Symbol())
		}
		if instruction.IsFunctionCall() {
			caller := functions[len(functions)-1]
			calls[caller] = append(calls[caller], instruction.Reference())
		}
	}
	if len(frames) != len(functions) {
		return 0, fmt.Errorf("%d frames of %d functions %v", len(frames), len(functions), functions)
	}
	depths := map[string]int{}
	for i, name := range functions {
		depth, err := strconv.Atoi(frames[i])
		if err != nil {
			return 0, err
		}
		depths[name] = (max(depth, 1) + stackUnit - 1) / stackUnit * stackUnit
	}
	var deepest func(name string) int
	deepest = func(name string) int {
		below := 0
		for _, called := range calls[name] {
			below = max(below, deepest(called))
		}
		return depths[name] + below
	}
	return deepest(functions[0]), nil
}
