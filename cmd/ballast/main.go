// Command ballast is a layer-4 load balancer for Linux that never breaks a connection.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/cli"
)

// version is set by the Makefile.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := cli.Root(version).ExecuteContext(ctx); err != nil {
		var status cli.ExitStatus
		if errors.As(err, &status) {
			os.Exit(int(status))
		}
		fmt.Fprintln(os.Stderr, "ballast:", err)
		os.Exit(1)
	}
}
