// What commands print, for people and for programs.
package command

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
)

// NewLog writes what a daemon has to say, for people and for log collectors.
func NewLog(verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// WriteJSON writes a value for programs.
func WriteJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// NonNil has no null in JSON.
func NonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// Counted is a number of things.
func Counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// OrDash shows in a table that there is nothing.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
