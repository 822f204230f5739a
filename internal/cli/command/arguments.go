// What a command line must be: every word of it is known, and none is missing, on every level.
package command

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Operands are the words of a command's Use between its name and its flags: SERVICE must be there, [SERVICE] may be missing, EXPERIMENT... is one or
// more, at the end.
func Operands(cmd *cobra.Command) []string {
	words := strings.Fields(cmd.Use)[1:]
	if i := slices.IndexFunc(words, func(word string) bool { return strings.ContainsAny(word, "-(") }); i >= 0 {
		return words[:i]
	}
	return words
}

// takeOperands refuses arguments that are none of a command's operands, and that some are missing.
func takeOperands(cmd *cobra.Command, args []string) error {
	names := Operands(cmd)
	most, missing := len(names), ""
	for i, name := range names {
		if strings.Contains(name, "...") {
			most = max(len(args), i+1)
		}
		if i >= len(args) && !strings.HasPrefix(name, "[") && missing == "" {
			missing = strings.TrimSuffix(name, "...")
		}
	}
	switch {
	case len(args) > most && cmd.HasAvailableSubCommands():
		return unknownCommand(cmd, args[most:])
	case len(args) > most:
		return Usage("%s: argument %q is one too many: the form is `%s`", cmd.CommandPath(), args[most], form(cmd))
	case missing != "":
		return Usage("%s: %s is missing: the form is `%s`", cmd.CommandPath(), missing, form(cmd))
	}
	return nil
}

// form is how a command is written.
func form(cmd *cobra.Command) string { return cmd.Parent().CommandPath() + " " + cmd.Use }

// Strict makes a tree of commands refuse what it does not know, and tells a wrong command line from a command that failed.
func Strict(root *cobra.Command) {
	root.SetHelpCommand(helpCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.SetFlagErrorFunc(flagError)
	strictBelow(root)
}

func strictBelow(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		strictBelow(child)
	}
	if !cmd.Runnable() {
		cmd.RunE = askForCommand
	}
	completeFlags(cmd)
	words := cmd.Args
	if words == nil {
		words = takeOperands
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		var said *withStatus
		err := words(cmd, args)
		if errors.As(err, &said) {
			return err
		}
		if o := outputOf(cmd); err == nil && o != nil {
			if err := o.check(); err != nil {
				return err
			}
		}
		if err = cmp.Or(err, cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups()); err != nil {
			return Usage("%s: %w: see `%s --help`", cmd.CommandPath(), err, cmd.CommandPath())
		}
		return nil
	}
}

// SameAs annotates a command that does what another one does, and has its help; that one is named without the program.
const SameAs = "the same as"

// askForCommand is what a command that is only the name of others does by itself.
func askForCommand(cmd *cobra.Command, _ []string) error {
	cmd.SetOut(cmd.ErrOrStderr())
	if err := cmd.Help(); err != nil {
		return err
	}
	return Usage("%s: a command is missing: use one of those above", cmd.CommandPath())
}

// reading are words that people try for `list` and `show`, or in front of the noun.
var reading = []string{"list", "ls", "get", "show"}

func unknownCommand(cmd *cobra.Command, args []string) error {
	var meant []string
	add := func(names ...string) {
		if found, rest, err := cmd.Find(names); err == nil && found != cmd && len(rest) == 0 && !found.Hidden {
			meant = append(meant, "`"+found.CommandPath()+"`")
		}
	}
	if slices.Contains(reading, args[0]) {
		add("list") // server ls
		if len(args) > 1 {
			noun := strings.TrimSuffix(args[1], "s")
			add(noun, "list") // get servers, get server
			add(noun, "show")
			if len(meant) == 0 {
				add(args[1])
			}
		}
	}
	if len(meant) == 0 {
		cmd.SuggestionsMinimumDistance = 2
		for _, name := range cmd.SuggestionsFor(args[0]) {
			add(name)
		}
	}
	remedy := "see `" + cmd.CommandPath() + " --help`"
	if meant = slices.Compact(meant); len(meant) > 0 {
		remedy = "did you mean " + strings.Join(meant, " or ") + "?"
	}
	return Usage("%s has no command %q: %s", cmd.CommandPath(), args[0], remedy)
}

// flagError is asked before arguments are looked at: an unknown command is the cause of its unknown flags.
func flagError(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); len(args) > 0 && cmd.HasAvailableSubCommands() {
		return unknownCommand(cmd, args)
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return Usage("%s: %w: see `%s --help`", cmd.CommandPath(), err, cmd.CommandPath())
	}
	name := unknown.GetSpecifiedName()
	if len(name) == 1 && name >= "0" && name <= "9" {
		return Usage("%s: -%s is taken for a flag, and no number here may be negative: the form is `%s`", cmd.CommandPath(),
			unknown.GetSpecifiedShortnames(), form(cmd))
	}
	return Usage("%s: %w: %s", cmd.CommandPath(), err, nearestFlag(cmd, name))
}

// nearestFlag is the remedy for an unknown flag.
func nearestFlag(cmd *cobra.Command, name string) string {
	// cobra compares words with the names of commands: here each flag is one.
	flags := &cobra.Command{SuggestionsMinimumDistance: 2}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	if near := flags.SuggestionsFor(name); len(name) > 1 && len(near) > 0 {
		return "did you mean --" + strings.Join(near, " or --") + "?"
	}
	return fmt.Sprintf("see `%s --help`", cmd.CommandPath())
}

// helpCommand knows every command, and says so when it does not.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND...]",
		Short: "Help about any command",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(found, rest)
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}
