// Package clitest runs command lines for tests.
package clitest

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/cli"
)

// Main makes the test binary behave as `ballast` where its first argument is a command: for tests of exit statuses.
func Main(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		os.Exit(cli.Main("test", os.Args[1:], os.Stderr))
	}
	os.Exit(m.Run())
}

// Run runs a command line for somebody who types nothing.
func Run(arguments ...string) (output string, err error) {
	var out bytes.Buffer
	root := cli.Root("test")
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetIn(strings.NewReader(""))
	root.SetArgs(arguments)
	err = root.Execute()
	return out.String(), err
}
