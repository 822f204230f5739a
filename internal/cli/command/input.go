// What commands read. The end of a pipe, or somebody's answer, may never come: Ctrl-C ends the wait.
package command

import (
	"bufio"
	"context"
	"io"
	"os"

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
