// Which form results have: a table for people, or JSON or YAML for programs. Flags choose it, else the environment.
package command

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Formats of results.
const (
	formatTable = "table"
	formatWide  = "wide"
	formatJSON  = "json"
	formatYAML  = "yaml"
)

var formats = []string{formatTable, formatWide, formatJSON, formatYAML}

// OutputVariable is the environment's choice, where no flag makes one.
const OutputVariable = "BALLAST_OUTPUT"

// Output is how a command prints what it found. Take one from NewOutput.
type Output struct {
	format string // empty: nobody has chosen
	by     string // who has: a flag, or the environment
}

// NewOutput adds -o and --json to the flags of a command.
func NewOutput(flags *pflag.FlagSet) *Output {
	o := &Output{}
	if format := os.Getenv(OutputVariable); format != "" {
		o.format, o.by = format, OutputVariable
	}
	flags.VarP((*outputFlag)(o), "output", "o", "`FORMAT` of results: "+alternatives(formats))
	flags.Var((*jsonFlag)(o), "json", "print JSON: the same as -o json")
	flags.Lookup("json").NoOptDefVal = "true"
	return o
}

// Structured reports whether a program reads what is printed.
func (o *Output) Structured() bool { return o.format == formatJSON || o.format == formatYAML }

// AsJSON reports whether JSON is printed.
func (o *Output) AsJSON() bool { return o.format == formatJSON }

// Tabular reports whether a flag asks for a table, and not the environment, nor nobody.
func (o *Output) Tabular() bool { return !o.Structured() && o.format != "" && o.by != OutputVariable }

// choose takes the choice of a flag, which two flags must not make differently.
func (o *Output) choose(format, by string) error {
	if o.by != "" && o.by != OutputVariable && o.by != by && o.format != format {
		return fmt.Errorf("%s asks for another form: give one of them", o.by)
	}
	o.format, o.by = format, by
	return nil
}

// check refuses what the environment says and no flag has replaced.
func (o *Output) check() error {
	if o.format != "" && !slices.Contains(formats, o.format) {
		return Usage("%s=%s: use %s", OutputVariable, o.format, alternatives(formats))
	}
	return nil
}

// outputOf is the Output of a command's flags; nil: it has none.
func outputOf(cmd *cobra.Command) *Output {
	if cmd == nil {
		return nil
	}
	flag := cmd.Flags().Lookup("output")
	if flag == nil {
		return nil
	}
	o, _ := flag.Value.(*outputFlag)
	return (*Output)(o)
}

// outputFlag is -o.
type outputFlag Output

func (f *outputFlag) String() string { return f.format }
func (f *outputFlag) Type() string   { return "string" }

func (f *outputFlag) Set(text string) error {
	if !slices.Contains(formats, text) {
		return fmt.Errorf("use %s", alternatives(formats))
	}
	return (*Output)(f).choose(text, "-o "+text)
}

// Choices are the formats, for completion.
func (f *outputFlag) Choices() []string { return formats }

// jsonFlag is --json.
type jsonFlag Output

func (f *jsonFlag) String() string   { return "" }
func (f *jsonFlag) Type() string     { return "bool" }
func (f *jsonFlag) IsBoolFlag() bool { return true }

func (f *jsonFlag) Set(text string) error {
	switch text {
	case "true":
		return (*Output)(f).choose(formatJSON, "--json")
	case "false":
		return nil
	}
	return fmt.Errorf("use true or false")
}

// alternatives are values between which somebody chooses.
func alternatives(values []string) string {
	last := len(values) - 1
	return strings.Join(values[:last], ", ") + " or " + values[last]
}
