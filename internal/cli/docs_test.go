package cli_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli"
	"github.com/ballast-lb/ballast/internal/lab/bench"
	labcli "github.com/ballast-lb/ballast/internal/lab/cli"
)

var (
	docBlock  = regexp.MustCompile("(?ms)^ *```\n(.*?)^ *```$")
	docSpan   = regexp.MustCompile("`(ballast(?:-lab)? [^`\n]+)`")
	docPrompt = regexp.MustCompile(`^(?:\$ )?(?:\$CTL|(?:bin/)?ballast(?:-lab)?) `)
	docVerb   = regexp.MustCompile(`(\w)%s`)                     // of fmt, where more flags may follow
	docEnd    = regexp.MustCompile(` +#.*$| *(?:&&|[|;>)<]).*$`) // of a command: what follows is the shell's, or somebody's remark
)

// The documents are read by people who type what they say.
func TestCommandsInTheDocumentsAreThoseOfTheProgram(t *testing.T) {
	names, err := filepath.Glob("../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range append(names, "../../README.md", "../../CONTRIBUTING.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range docBlock.FindAllStringSubmatch(string(text), -1) {
			for line := range strings.Lines(strings.ReplaceAll(block[1], "\\\n", "")) {
				for part := range strings.SplitSeq(strings.TrimLeft(strings.TrimSpace(line), "("), "&& ") {
					if docPrompt.MatchString(part) {
						checkCommand(t, name, part, true)
						found++
					}
				}
			}
		}
		for _, span := range docSpan.FindAllStringSubmatch(string(text), -1) {
			checkCommand(t, name, span[1], false)
			found++
		}
	}
	if found < 50 {
		t.Errorf("found only %d commands", found)
	}
}

// Remedies, help and errors name commands as well.
func TestCommandsInTheProgramsTextsAreThoseOfTheProgram(t *testing.T) {
	found := 0
	look := func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				text, _ := strconv.Unquote(literal.Value)
				for _, span := range docSpan.FindAllStringSubmatch(docVerb.ReplaceAllString(text, "$1"), -1) {
					checkCommand(t, path, span[1], false)
					found++
				}
			}
			return true
		})
		return nil
	}
	if err := filepath.WalkDir("..", look); err != nil || found < 20 {
		t.Errorf("found only %d commands: %v", found, err)
	}
}

// Help is a file for each command: its name leads nowhere else, and its examples can be typed.
func TestHelpIsOfCommandsAndItsExamplesCanBeTyped(t *testing.T) {
	for folder, root := range map[string]*cobra.Command{"help": cli.Root("test"), "../lab/cli/help": labcli.Root("test")} {
		names := map[string]bool{"help.go": true}
		everyCommand(root, func(cmd *cobra.Command) {
			names[strings.ReplaceAll(strings.TrimPrefix(cmd.CommandPath(), root.Name()+" "), " ", "-")+".txt"] = true
			for _, span := range docSpan.FindAllStringSubmatch(cmd.Long, -1) {
				checkCommand(t, "help of "+cmd.CommandPath(), span[1], false)
			}
			for line := range strings.Lines(strings.ReplaceAll(cmd.Example, "\\\n", "")) {
				for part := range strings.SplitSeq(strings.TrimSpace(line), "&& ") {
					if docPrompt.MatchString(part) {
						checkCommand(t, "help of "+cmd.CommandPath(), part, true)
					}
				}
			}
		})
		files, err := os.ReadDir(folder)
		if err != nil || len(files) < 10 {
			t.Fatalf("%s has %d files: %v", folder, len(files), err)
		}
		for _, file := range files {
			if !names[file.Name()] {
				t.Errorf("%s/%s is of no command", folder, file.Name())
			}
		}
	}
	cmd, _, err := labcli.Root("test").Find([]string{"bench", "table"})
	if err != nil || !strings.Contains(cmd.Long, fmt.Sprintf("at least %d flows", bench.MinChangedFlows)) {
		t.Errorf("help of bench table does not say from how many flows on changes are measured: %v", err)
	}
}

// checkCommand looks at names and flags; at arguments only where the line is complete.
func checkCommand(t *testing.T, document, line string, complete bool) {
	t.Helper()
	words := strings.Fields(docEnd.ReplaceAllString(docPrompt.ReplaceAllStringFunc(line, func(prompt string) string {
		if strings.Contains(prompt, "$CTL") {
			return "ctl "
		}
		return ""
	}), ""))
	if slices.Contains(words, "...") {
		return
	}
	root := cli.Root("test")
	if strings.Contains(docPrompt.FindString(line), "-lab") {
		root = labcli.Root("test")
	}
	command, rest, err := root.Find(words)
	if err == nil && !slices.Contains(rest, "--help") {
		err = command.ParseFlags(rest)
	}
	if err == nil && complete {
		err = command.ValidateArgs(command.Flags().Args())
	}
	if unknown := command.HasSubCommands() && command.Flags().NArg() > 0; err != nil || unknown || command == root {
		t.Errorf("%s: %s: there is no such command of %s (%v)", filepath.Base(document), line, command.CommandPath(), err)
	}
}
