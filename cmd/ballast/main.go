// Command ballast is a layer-4 load balancer for Linux that keeps connections on their servers.
package main

import (
	"os"

	"github.com/ballast-lb/ballast/internal/cli"
)

// version is set by the Makefile.
var version = "development"

func main() { os.Exit(cli.Main(version, os.Args[1:], os.Stderr)) }
