// Names of commands: a noun and a verb, and the short forms of those that were one word before.
package ask

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
)

// Short makes a command that is another, NOUN VERB, under a name of its own.
func Short(name, of string, cmd *cobra.Command) *cobra.Command {
	_, operands, _ := strings.Cut(cmd.Use, " ")
	cmd.Use = strings.TrimSpace(name + " " + operands)
	cmd.Short = "The same as `ballast ctl " + of + "`"
	cmd.Annotations = map[string]string{command.SameAs: "ctl " + of}
	return cmd
}

// Lone makes the command of a noun that has one verb, and does by itself the same.
func Lone(noun string, verb func() *cobra.Command) *cobra.Command {
	child, cmd := verb(), verb()
	cmd.Use = noun
	cmd.AddCommand(child)
	cmd.Annotations = map[string]string{command.SameAs: "ctl " + noun + " " + child.Name()}
	return cmd
}
