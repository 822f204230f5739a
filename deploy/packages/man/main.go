// Command man writes a manual page for every command of ballast, ballast-lab and ballast-kube, and one for the file, in a folder for each program.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/ballast-lb/ballast/internal/cli"
	kubecli "github.com/ballast-lb/ballast/internal/kube/cli"
	labcli "github.com/ballast-lb/ballast/internal/lab/cli"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 2 {
		return fmt.Errorf("usage: man VERSION DIRECTORY, with SOURCE_DATE_EPOCH in the environment")
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("read SOURCE_DATE_EPOCH: %w", err)
	}
	date := time.Unix(seconds, 0).UTC()
	for _, root := range []*cobra.Command{cli.Root(arguments[0]), labcli.Root(arguments[0]), kubecli.Root(arguments[0])} {
		root.DisableAutoGenTag = true
		root.InitDefaultCompletionCmd()
		header := &doc.GenManHeader{Section: "1", Date: &date, Source: "ballast " + arguments[0], Manual: "Ballast"}
		folder := filepath.Join(arguments[1], root.Name())
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		asCode(root)
		if err := doc.GenManTree(root, header, folder); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(arguments[1], "ballast", "ballast.yaml.5"), filePage("ballast "+arguments[0], date), 0o644)
}

// asCode keeps indented lines of help texts as they are: commands and lists would be filled.
func asCode(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		asCode(child)
	}
	var out []string
	code := false
	for line := range strings.Lines(cmd.Long) {
		line = strings.TrimRight(line, "\n")
		switch indented := strings.HasPrefix(line, "  "); {
		case line == "" || indented == code:
		case indented:
			out, code = append(out, "```"), true
		default:
			for blank := len(out) - 1; out[blank] == ""; blank-- {
				out = out[:blank]
			}
			out, code = append(out, "```", ""), false
		}
		out = append(out, line)
	}
	if code {
		out = append(out, "```")
	}
	cmd.Long = strings.Join(out, "\n")
}
