// Command ballast-lab has the processes that run inside the networks of `ballast lab`: clients, servers, etcd, links. The lab starts them.
package main

import (
	"os"

	"github.com/ballast-lb/ballast/internal/lab/process"
)

func main() { os.Exit(process.Main(os.Args[1:], os.Stderr)) }
