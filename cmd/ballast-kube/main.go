// Command ballast-kube keeps the Services of a Kubernetes cluster in a fleet of Ballast.
package main

import (
	"os"

	"github.com/ballast-lb/ballast/internal/kube/cli"
)

// version is set by the Makefile.
var version = "development"

func main() { os.Exit(cli.Main(version, os.Args[1:], os.Stderr)) }
