// Command man writes a manual page for every command of ballast.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra/doc"

	"github.com/ballast-lb/ballast/internal/cli"
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
	root := cli.Root(arguments[0])
	root.DisableAutoGenTag = true
	root.InitDefaultCompletionCmd()
	header := &doc.GenManHeader{Title: "BALLAST", Section: "1", Date: &date, Source: "ballast " + arguments[0], Manual: "Ballast"}
	return doc.GenManTree(root, header, arguments[1])
}
