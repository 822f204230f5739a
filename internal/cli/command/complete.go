// Completion by a shell of what the program knows without asking anybody.
package command

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Complete makes arguments of a command complete.
func Complete(cmd *cobra.Command, words func() []string) {
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return words(), cobra.ShellCompDirectiveNoFileComp
	}
}

// choosing is a flag that has one of a few values.
type choosing interface{ Choices() []string }

// completeFlags makes flags of a command complete that have one of a few values.
func completeFlags(cmd *cobra.Command) {
	complete := func(flag *pflag.Flag) {
		of, ok := flag.Value.(choosing)
		if !ok || len(of.Choices()) == 0 {
			return
		}
		if err := cmd.RegisterFlagCompletionFunc(flag.Name, cobra.FixedCompletions(of.Choices(), cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err)
		}
	}
	cmd.LocalNonPersistentFlags().VisitAll(complete)
	cmd.PersistentFlags().VisitAll(complete)
}
