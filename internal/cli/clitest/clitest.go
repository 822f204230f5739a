// Package clitest runs command lines for tests.
package clitest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/cli"
	"github.com/ballast-lb/ballast/internal/lab/process"
)

// Main is the program itself where it is given a command: for tests that look at an exit status, and so that nothing that a command starts by
// its own name, as a lab does, ever runs all the tests again. By another name it is that of the lab's processes.
func Main(m *testing.M) {
	if filepath.Base(os.Args[0]) == process.Program {
		os.Exit(process.Main(os.Args[1:], os.Stderr))
	}
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
