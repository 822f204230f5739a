// What commands read. The end of a pipe, or somebody's answer, may never come: Ctrl-C ends the wait.
package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// ReadUpTo reads at most so many bytes of a file, which may be a pipe, or of the standard input: -.
func ReadUpTo(cmd *cobra.Command, name string, most int64) ([]byte, error) {
	return waitFor(cmd.Context(), func() ([]byte, error) {
		in := cmd.InOrStdin()
		if name != "-" {
			file, err := os.Open(name)
			if err != nil {
				return nil, err
			}
			defer file.Close()
			in = file
		}
		return io.ReadAll(io.LimitReader(in, most))
	})
}

// ReadLine reads somebody's answer.
func ReadLine(cmd *cobra.Command) (string, error) {
	return waitFor(cmd.Context(), func() (string, error) { return bufio.NewReader(cmd.InOrStdin()).ReadString('\n') })
}

// waitFor returns what read returns, or that ctx has ended before: read then waits on until the process ends.
func waitFor[T any](ctx context.Context, read func() (T, error)) (value T, err error) {
	done := make(chan error, 1)
	var got T
	go func() {
		var err error
		got, err = read()
		done <- err
	}()
	select {
	case err := <-done:
		return got, err
	case <-ctx.Done():
		return value, ctx.Err()
	}
}

// Warn shows what a command harms.
func Warn(cmd *cobra.Command, warnings ...string) {
	for _, line := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "WARNING:", line)
	}
}

// Unasked is why nothing was changed where nobody can be asked.
func Unasked(remedy string) error {
	return errors.New("nothing was changed: there is no terminal to ask at: " + remedy)
}

// Confirm asks whether to go on, where there is somebody to ask.
func Confirm(cmd *cobra.Command, question, remedy string) error {
	if !IsTerminal(cmd.InOrStdin()) {
		return Unasked(remedy)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s? [y/N] ", question)
	answer, err := ReadLine(cmd)
	if err != nil && err != io.EOF {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("nothing was changed")
	}
	return nil
}
