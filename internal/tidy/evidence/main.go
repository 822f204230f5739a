// Evidence prints the promises of the repository's tests, and how to run each: make evidence.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ballast-lb/ballast/internal/tidy/promises"
)

func main() {
	if err := filepath.WalkDir(".", show); err != nil {
		fmt.Fprintln(os.Stderr, "read promises:", err)
		os.Exit(1)
	}
}

var shown string // folder whose title was printed last

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
