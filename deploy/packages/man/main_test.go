package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli"
	kubecli "github.com/ballast-lb/ballast/internal/kube/cli"
	labcli "github.com/ballast-lb/ballast/internal/lab/cli"
	"github.com/ballast-lb/ballast/internal/schema"
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
	check(kubecli.Root("1.2.3"))
}

func TestTheDateMustBeGiven(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "")
	if err := run([]string{"1.2.3", t.TempDir()}); err == nil || !strings.Contains(err.Error(), "SOURCE_DATE_EPOCH") {
		t.Errorf("error %v", err)
	}
}

func written(t *testing.T, page string) string {
	t.Helper()
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	folder := t.TempDir()
	if err := run([]string{"1.2.3", folder}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(folder, page))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestCommandsInHelpTextsAreNotFilled(t *testing.T) {
	page := written(t, "ballast/ballast.1")
	before, _, found := strings.Cut(page, "ballast lb -f ballast.yaml       on each load balancer")
	if !found || strings.LastIndex(before, ".EX") <= strings.LastIndex(before, ".EE") {
		t.Errorf("the command is no code:\n%s", page)
	}
	if open, closed := strings.Count(page, ".EX\n"), strings.Count(page, ".EE\n"); open != closed || open < 3 {
		t.Errorf("%d pieces of code begin, %d end", open, closed)
	}
}

func TestTheFileHasAPageWithEveryField(t *testing.T) {
	page := written(t, "ballast/ballast.yaml.5")
	if !strings.Contains(page, `.TH "BALLAST.YAML" "5" "Nov 2023" "ballast 1.2.3"`) || !strings.Contains(page, `ballast.yaml \- services, servers and load balancers`) {
		t.Errorf("it begins with %.300s", page)
	}
	has := func(key string) {
		if !strings.Contains(page, ".TP\n"+key+"\n") {
			t.Errorf("there is no %s", key)
		}
	}
	for _, f := range schema.Service {
		has(f.Key)
	}
	for _, f := range schema.Server {
		has(f.Key)
	}
	for _, f := range schema.Node {
		has(f.Key)
	}
	for _, f := range schema.Fleet {
		has(f.Key)
	}
	if strings.Contains(page, "`") {
		t.Error("a mark of the documents is left")
	}
}
