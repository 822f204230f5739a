// Package help has what --help says of each command at length: of `ballast ctl server drain`, ctl-server-drain.txt. Examples come last.
package help

import (
	"cmp"
	"embed"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
)

//go:embed *.txt
var texts embed.FS

// Add gives a command and all below it their texts. Of those that have none, what they are in short says all.
func Add(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		Add(child)
	}
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	path = cmp.Or(cmd.Annotations[command.SameAs], path)
	text, err := texts.ReadFile(cmp.Or(strings.ReplaceAll(path, " ", "-"), cmd.Name()) + ".txt")
	if err == nil {
		long, examples, _ := strings.Cut(string(text), "Examples:\n")
		cmd.Long, cmd.Example = strings.TrimSpace(long), strings.TrimRight(examples, "\n")
	}
}
