// Package help has the long help text of each command: that of `ballast ctl server drain` is ctl-server-drain.txt. Examples come last.
package help

import (
	"cmp"
	"embed"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
)

// Texts are those of `ballast`.
//
//go:embed *.txt
var Texts embed.FS

// Add gives a command and its subcommands their texts. A command without a text has its short description alone.
func Add(cmd *cobra.Command, texts fs.FS) {
	for _, child := range cmd.Commands() {
		Add(child, texts)
	}
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	path = cmp.Or(cmd.Annotations[command.SameAs], path)
	text, err := fs.ReadFile(texts, cmp.Or(strings.ReplaceAll(path, " ", "-"), cmd.Name())+".txt")
	if err == nil {
		long, examples, _ := strings.Cut(string(text), "Examples:\n")
		cmd.Long, cmd.Example = strings.TrimSpace(long), strings.TrimRight(examples, "\n")
	}
}
