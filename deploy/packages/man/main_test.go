package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli"
	labcli "github.com/ballast-lb/ballast/internal/lab/cli"
)

func TestEveryCommandHasAManualPage(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	folder := t.TempDir()
	if err := run([]string{"1.2.3", folder}); err != nil {
		t.Fatal(err)
	}
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		page, err := os.ReadFile(filepath.Join(folder, cmd.Root().Name(), strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"))
		if err != nil {
			t.Error(err)
		}
		if !strings.Contains(string(page), "Nov 2023") || !strings.Contains(string(page), "ballast 1.2.3") {
			t.Errorf("%s: the page has another date or version:\n%.200s", cmd.CommandPath(), page)
		}
		for _, child := range cmd.Commands() {
			if child.IsAvailableCommand() {
				check(child)
			}
		}
	}
	check(cli.Root("1.2.3"))
	check(labcli.Root("1.2.3"))
}

func TestTheDateMustBeGiven(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "")
	if err := run([]string{"1.2.3", t.TempDir()}); err == nil || !strings.Contains(err.Error(), "SOURCE_DATE_EPOCH") {
		t.Errorf("error %v", err)
	}
}
