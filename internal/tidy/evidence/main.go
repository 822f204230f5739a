// Evidence prints the promises of the repository's tests, and which tests show what users of other products have reported, and how to run each: make
// evidence.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/tidy/promises"
)

func main() {
	if err := filepath.WalkDir(".", show); err != nil {
		fmt.Fprintln(os.Stderr, "read promises:", err)
		os.Exit(1)
	}
	slices.SortFunc(reports, func(a, b promises.Report) int { return strings.Compare(a.Issue, b.Issue) })
	fmt.Printf("# Reported by users of others: what happened there, and the test here\n\n")
	for _, report := range reports {
		fmt.Println(report)
	}
}

var (
	shown   string // folder whose title was printed last
	reports []promises.Report
)

func show(name string, entry fs.DirEntry, err error) error {
	switch {
	case err != nil:
		return err
	case entry.IsDir() && (name == ".git" || name == "bin" || name == "third_party"):
		return filepath.SkipDir
	case !strings.HasSuffix(name, "_test.go"):
		return nil
	}
	source, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	others, err := promises.Reports(name, source)
	if err != nil {
		return err
	}
	reports = append(reports, others...)
	found, err := promises.Of(name, source)
	for _, promise := range found {
		if folder := filepath.Dir(name); folder != shown {
			shown = folder
			fmt.Printf("# %s\n\n", folder)
		}
		fmt.Println(promise)
	}
	return err
}
