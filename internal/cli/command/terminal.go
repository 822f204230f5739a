// What commands print: others' words (keys of a file, names, answers of daemons) reach a terminal as text and never as its commands, and people read
// the names that services have in Kubernetes.
package command

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/model"
)

// legible is an output that spells control characters and those that turn the direction of writing out, as JSON does. Names are written whole.
type legible struct {
	terminal io.Writer
	people   bool // read it, and no program does
}

func (l legible) Write(written []byte) (int, error) {
	text := string(written)
	if l.people {
		text = model.ForPeople(text)
	}
	if !strings.ContainsFunc(text, isControl) {
		if _, err := io.WriteString(l.terminal, text); err != nil {
			return 0, err
		}
		return len(written), nil
	}
	var spelled strings.Builder
	for _, r := range text {
		if isControl(r) {
			fmt.Fprintf(&spelled, `\u%04x`, r)
			continue
		}
		spelled.WriteRune(r)
	}
	if _, err := io.WriteString(l.terminal, spelled.String()); err != nil {
		return 0, err
	}
	return len(written), nil
}

func isControl(r rune) bool {
	return r != '\n' && r != '\t' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
}

// PrintLegibly makes it so for all that a command prints.
func PrintLegibly(cmd *cobra.Command, _ []string) {
	o := outputOf(cmd)
	cmd.SetOut(legible{cmd.OutOrStdout(), o == nil || !o.Structured()})
	cmd.SetErr(legible{cmd.ErrOrStderr(), true})
}

// File is a command's output where programs read it in each form.
func File(cmd *cobra.Command) io.Writer {
	if l, ok := cmd.OutOrStdout().(legible); ok {
		return legible{l.terminal, false}
	}
	return cmd.OutOrStdout()
}

// Bytes is a command's output as it is: for what no terminal shows.
func Bytes(cmd *cobra.Command) io.Writer {
	out := cmd.OutOrStdout()
	if l, ok := out.(legible); ok {
		out = l.terminal
	}
	return out
}

// Commands to a terminal.
const (
	EraseLine   = "\r\x1b[K"
	EraseScreen = "\x1b[H\x1b[2J"
)

// Control sends a command to a terminal.
func Control(terminal io.Writer, command string) {
	if l, ok := terminal.(legible); ok {
		terminal = l.terminal
	}
	io.WriteString(terminal, command)
}

// IsTerminal tells whether somebody may be looking at an output, or typing an input.
func IsTerminal(file any) bool {
	if l, ok := file.(legible); ok {
		file = l.terminal
	}
	f, ok := file.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
