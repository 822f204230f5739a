// Command ballast-lab puts Ballast to the test: scenarios in network namespaces, benchmarks, and simulations of the papers' experiments.
package main

import (
	"os"

	"github.com/ballast-lb/ballast/internal/lab/cli"
)

// version is set by the Makefile.
var version = "development"

func main() { os.Exit(cli.Main(version, os.Args[1:], os.Stderr)) }
