// Package tidy holds the rules of the repository as tests. They read the files themselves, whatever the test cache thinks.
package tidy

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/ballast-lb/ballast/"

	maxHeaderLines   = 200       // of a BPF header, besides its includes
	maxFileLines     = 500       // of a Go file
	maxFileBytes     = 256 << 10 // of any file: every clone has it forever
	maxFunctionLines = 100       // of a Go function outside tests
)

// files returns the paths, relative to the repository, of the files that belong to it and have one of the suffixes.
func files(t *testing.T, suffixes ...string) []string {
	t.Helper()
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		out = walk(t) // a source archive without history
	}
	var found []string
	for name := range strings.SplitSeq(strings.Trim(string(out), "\x00"), "\x00") {
		if strings.HasPrefix(name, "third_party/") {
			continue // other people's: third_party_test.go
		}
		info, err := os.Lstat(filepath.Join(root, name))
		if err == nil && info.Mode().IsRegular() && (len(suffixes) == 0 || slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) })) {
			found = append(found, name)
		}
	}
	if len(found) == 0 {
		t.Fatalf("no files *%v under %s", suffixes, root)
	}
	return found
}

// What is built does not belong into the repository.
func TestFilesAreSmall(t *testing.T) {
	for _, name := range files(t) {
		info, err := os.Lstat(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > maxFileBytes {
			t.Errorf("%s: %d bytes, at most %d", name, info.Size(), maxFileBytes)
		}
	}
}

func walk(t *testing.T) []byte {
	t.Helper()
	var names []byte
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		if entry.IsDir() && (relative == ".git" || relative == "bin") {
			return filepath.SkipDir
		}
		if !entry.IsDir() && !strings.Contains(relative, "_bpfe") {
			names = append(append(names, relative...), 0)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// parse returns the syntax trees of all Go files by path.
func parse(t *testing.T) (*token.FileSet, map[string]*ast.File) {
	t.Helper()
	set, trees := token.NewFileSet(), make(map[string]*ast.File)
	for _, name := range files(t, ".go") {
		tree, err := parser.ParseFile(set, name, read(t, name), parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		trees[name] = tree
	}
	return set, trees
}

func imports(tree *ast.File) (paths []string) {
	for _, spec := range tree.Imports {
		paths = append(paths, strings.Trim(spec.Path.Value, `"`))
	}
	return paths
}

// isTest reports whether a file is of tests alone: as packages are whose names end like those of files, and what tests share.
func isTest(name string) bool {
	return strings.HasSuffix(name, "_test.go") || strings.HasSuffix(path.Dir(name), "test") || layer(name) == "testkit"
}

// layers are folders of internal whose code outside tests may import of ours only what is listed ("" = nothing).
var layers = map[string][]string{
	"model":      {},
	"schema":     {"model"},
	"algo":       {"algo", "model"},
	"wire":       {"model"},
	"plan":       {"algo", "model", "wire"},
	"machine":    {"plan", "wire", "algo", "model", "schema", "yamltree"},
	"yamltree":   {"model"},
	"config":     {"model", "schema", "yamltree"},
	"store":      {"store", "model", "config", "wire"},
	"linux":      {"linux", "plan", "wire", "algo", "model", "bpf"},
	"engine":     {"linux", "machine", "pki", "algo", "model"},
	"hub":        {"engine", "api", "machine", "pki", "model"},
	"nodeclient": {"api", "machine", "pki", "model"},
	"kube":       {"kube", "machine", "api", "enrol", "config", "pki", "model", "schema", "yamltree", "daemon", "cli"},
	"daemon":     {"daemon", "hub", "engine", "nodeclient", "config", "api", "linux", "machine", "pki", "plan", "algo", "model", "pkg"},
	"pkg":        {"pkg", "algo"}, // for applications
	"lab/data":   {},
	"lab/script": {},
	"lab/sim":    {"lab/script", "lab/sim", "lab/data", "machine", "plan", "wire", "algo", "model", "yamltree"},
}

// pure folders do no input or output and do not know the time.
var pure = []string{"model", "algo", "wire", "plan", "machine", "schema", "yamltree", "lab/script", "lab/sim"}

// layer returns the folder below internal that a package or file belongs to, of the laboratory with the folder below it; pkg, or "".
func layer(name string) string {
	name = strings.TrimPrefix(name, module)
	rest, ok := strings.CutPrefix(name, "internal/")
	if strings.HasPrefix(name, "pkg/") {
		return "pkg"
	}
	if strings.HasPrefix(name, "bpf/") {
		return "bpf"
	}
	if !ok {
		return ""
	}
	first, below, _ := strings.Cut(rest, "/")
	if part, _, found := strings.Cut(below, "/"); first == "lab" && part != "" && (found || !strings.Contains(part, ".")) {
		return path.Join(first, part)
	}
	return first
}

func isLaboratory(name string) bool {
	first, _, _ := strings.Cut(layer(name), "/")
	return first == "lab"
}

func TestPackagesImportOnlyWhatTheirLayerMay(t *testing.T) {
	_, trees := parse(t)
	for name, tree := range trees {
		allowed, ruled := layers[layer(name)]
		for _, imported := range imports(tree) {
			other := layer(imported)
			if !ruled || isTest(name) || !strings.HasPrefix(imported, module) || path.Dir(name) == strings.TrimPrefix(imported, module) {
				continue
			}
			if !slices.Contains(allowed, other) {
				t.Errorf("%s imports %s: %s may import of ours only %v", name, imported, layer(name), allowed)
			}
		}
	}
}

// The load balancer and the agent share rooms below them, and neither knows the other.
func TestDaemonsKnowNothingOfEachOther(t *testing.T) {
	daemons := regexp.MustCompile(`internal/daemon/(agent|lb)\b`)
	_, trees := parse(t)
	for name, tree := range trees {
		for _, imported := range imports(tree) {
			daemon := daemons.FindString(imported)
			if daemon != "" && strings.HasPrefix(name, "internal/daemon/") && !isTest(name) && !strings.HasPrefix(name, daemon+"/") {
				t.Errorf("%s imports %s: what daemons share stands below both", name, imported)
			}
		}
	}
}

// Commands share what stands below them; only the roots, which list them, know several.
func TestCommandsKnowNothingOfEachOther(t *testing.T) {
	roots := []string{"internal/cli", "internal/cli/ctl", "internal/cli/clitest"}
	_, trees := parse(t)
	for name, tree := range trees {
		if !strings.HasPrefix(name, "internal/cli/") || isTest(name) || slices.Contains(roots, path.Dir(name)) {
			continue
		}
		for _, imported := range imports(tree) {
			other, ours := strings.CutPrefix(imported, module+"internal/cli/")
			if ours && other != "command" && other != "ctl/ask" {
				t.Errorf("%s imports %s: what commands share stands below them, in command or ctl/ask", name, imported)
			}
		}
	}
}

func TestOnlyPackagesOfProgramsImportTheBPFLibrary(t *testing.T) {
	_, trees := parse(t)
	for name, tree := range trees {
		for _, imported := range imports(tree) {
			if strings.HasPrefix(imported, "github.com/cilium/ebpf") && layer(name) != "linux" &&
				!slices.Contains([]string{"internal/lab/bench/wrapper", "internal/lab/bench/peer"}, path.Dir(name)) {
				t.Errorf("%s imports %s: go through internal/linux", name, imported)
			}
		}
	}
}

func TestOnlyTheEdgeOfBGPImportsGoBGP(t *testing.T) {
	const edge = "internal/daemon/lb/bgp"
	used := false
	_, trees := parse(t)
	for name, tree := range trees {
		for _, imported := range imports(tree) {
			if !strings.HasPrefix(imported, "github.com/osrg/gobgp/") {
				continue
			}
			if used = true; path.Dir(name) != edge {
				t.Errorf("%s imports %s: go through %s", name, imported, edge)
			}
		}
	}
	if !used {
		t.Error("nothing imports GoBGP")
	}
}

// What Kubernetes needs is in a program of its own: daemons link none of it.
func TestOnlyTheProgramForKubernetesImportsItsLibraries(t *testing.T) {
	kubernetes := regexp.MustCompile(`^(k8s|sigs\.k8s)\.io/`)
	ours := regexp.MustCompile(`(^|/)(internal/machine/kube|internal/kube|cmd/ballast-kube|test/kubernetes|deploy/kubernetes/tools|deploy/packages/man)(/|$)`)
	used := false
	_, trees := parse(t)
	for name, tree := range trees {
		for _, imported := range imports(tree) {
			if kubernetes.MatchString(imported) || strings.HasPrefix(imported, module) && ours.MatchString(imported) {
				if used = true; !ours.MatchString(path.Dir(name)) {
					t.Errorf("%s imports %s: daemons would link the libraries of Kubernetes", name, imported)
				}
			}
		}
	}
	if !used {
		t.Error("nothing imports the libraries of Kubernetes")
	}
}

func TestPureCodeHasNoInputOutputOrTime(t *testing.T) {
	forbidden := regexp.MustCompile(`^(os|os/.*|io/ioutil|net|net/(http|rpc|smtp|textproto).*|syscall|log|log/slog|math/rand|crypto/rand|` +
		`golang\.org/x/sys/.*|github\.com/vishvananda/.*|github\.com/cilium/.*|go\.etcd\.io/.*)$`)
	clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	set, trees := parse(t)
	for name, tree := range trees {
		if isTest(name) || !slices.Contains(pure, layer(name)) {
			continue
		}
		for _, imported := range imports(tree) {
			if forbidden.MatchString(imported) {
				t.Errorf("%s imports %s: internal/%s is pure", name, imported, layer(name))
			}
		}
		ast.Inspect(tree, func(node ast.Node) bool {
			selector, ok := node.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if left, ok := selector.X.(*ast.Ident); ok && left.Name == "time" && slices.Contains(clock, selector.Sel.Name) {
				t.Errorf("%s: time.%s in pure code: take the time as an argument", set.Position(node.Pos()), selector.Sel.Name)
			}
			return true
		})
	}
}

func TestNoPackageIsNamedUtils(t *testing.T) {
	_, trees := parse(t)
	for name, tree := range trees {
		if slices.Contains([]string{"util", "utils", "helper", "helpers", "common", "misc"}, strings.TrimSuffix(tree.Name.Name, "_test")) {
			t.Errorf("%s: package %s says nothing: name it after its job", name, tree.Name.Name)
		}
	}
}

func TestFilesAndFunctionsStayShort(t *testing.T) {
	for _, name := range files(t, ".go", ".h") {
		most := maxFileLines
		if strings.HasSuffix(name, ".h") {
			most = maxHeaderLines
		}
		text := read(t, name)
		if lines := bytes.Count(text, []byte("\n")) - bytes.Count(text, []byte("\n#include ")); lines > most {
			t.Errorf("%s has %d lines: split it, at most %d", name, lines, most)
		}
	}
	set, trees := parse(t)
	for name, tree := range trees {
		if isTest(name) {
			continue
		}
		for _, declaration := range tree.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if lines := set.Position(function.End()).Line - set.Position(function.Pos()).Line + 1; lines > maxFunctionLines {
				t.Errorf("%s: %s has %d lines: split it, at most %d", name, function.Name.Name, lines, maxFunctionLines)
			}
		}
	}
}

func TestBPFFilesBeginWithTheirNameAndJob(t *testing.T) {
	for _, name := range files(t, ".c", ".h") {
		if !strings.HasPrefix(name, "bpf/") {
			continue
		}
		// The licence may come first.
		lines := strings.SplitN(string(read(t, name)), "\n", 4)
		head := strings.Join(lines[:min(3, len(lines))], "\n")
		if !strings.HasPrefix(head, "/") || !regexp.MustCompile(`(?m)^(/\*|//| \*) *`+regexp.QuoteMeta(path.Base(name))+` - \S`).MatchString(head) {
			t.Errorf("%s: begin with a comment: %s - what it does", name, path.Base(name))
		}
	}
}

// The tracker is not part of the project: a reason is written where it is needed.
func TestNothingPointsAtATracker(t *testing.T) {
	forbidden := regexp.MustCompile(`(?i)\bissue ?#`)
	for _, name := range files(t) {
		text := read(t, name)
		if bytes.IndexByte(text, 0) >= 0 || strings.HasPrefix(name, "internal/tidy/") {
			continue
		}
		for i, line := range strings.Split(string(text), "\n") {
			if forbidden.MatchString(line) {
				t.Errorf("%s:%d: %s: give the reason instead of its number", name, i+1, strings.TrimSpace(line))
			}
		}
	}
}

// Flags that depend on the machine are in the Makefile.
func TestDirectivesNameNoArchitecture(t *testing.T) {
	for _, name := range files(t, ".go") {
		for _, directive := range regexp.MustCompile(`(?m)^//go:generate .*-linux-gnu.*`).FindAll(read(t, name), -1) {
			t.Errorf("%s: %s: builds on one architecture only", name, directive)
		}
	}
}

// docs/design/papers.md maps sections of papers to files and tests.
func TestPathsInTheMapOfPapersExist(t *testing.T) {
	const papers = "docs/design/papers.md"
	text, err := os.ReadFile(filepath.Join(root, papers))
	if err != nil {
		t.Skipf("no %s yet", papers)
	}
	for _, problem := range missingPaths(string(text)) {
		t.Errorf("%s: %s", papers, problem)
	}
}

var (
	codeSpan = regexp.MustCompile("`([^`\n]+)`")
	repoPath = regexp.MustCompile(`^(bpf|cmd|internal|test|docs|deploy)/[\w./-]*$`)
)

// missingPaths returns a line for every code span that looks like a path of the repository but names nothing there.
func missingPaths(markdown string) (problems []string) {
	for i, line := range strings.Split(markdown, "\n") {
		for _, span := range codeSpan.FindAllStringSubmatch(line, -1) {
			if !repoPath.MatchString(span[1]) {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, span[1])); err != nil {
				problems = append(problems, fmt.Sprintf("line %d: %s does not exist", i+1, span[1]))
			}
		}
	}
	return problems
}

func TestMissingPathsFindsThem(t *testing.T) {
	have := missingPaths("a `internal/tidy` and `internal/none.go`\nand `rr`, `bpf/none.h`")
	if len(have) != 2 || have[1] != "line 2: bpf/none.h does not exist" {
		t.Errorf("have %q", have)
	}
}
