// Package process is the program `ballast-lab`: what runs inside the namespaces of a lab beside Ballast itself, and the other end of a
// benchmark. Nobody else starts it.
package process

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/ballast-lb/ballast/internal/lab/bench/control"
	"github.com/ballast-lb/ballast/internal/lab/process/app"
	"github.com/ballast-lb/ballast/internal/lab/process/http3"
	"github.com/ballast-lb/ballast/internal/lab/process/member"
	"github.com/ballast-lb/ballast/internal/lab/process/relay"
	"github.com/ballast-lb/ballast/internal/lab/process/session"
	"github.com/ballast-lb/ballast/internal/lab/process/slowlink"
	"github.com/ballast-lb/ballast/internal/lab/process/stateful"
	"github.com/ballast-lb/ballast/internal/lab/process/tlsclient"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

// Program is the name of its file.
const Program = "ballast-lab"

// Peer is the first argument of the program where it runs one of these processes.
const Peer = "peer"

// Names of the processes: the argument behind Peer.
const (
	App      = "app"       // OPTIONS: an application server
	Client   = "client"    // the plan is on standard input
	Echo     = "echo"      // ADDRESS SERVER
	Peers    = "peers"     // of `ballast-lab bench control`; what they do is on standard input
	HTTP3    = "http3"     // OPTIONS: an HTTP/3 server
	Member   = "etcd"      // OPTIONS: a member of an etcd cluster
	Relay    = "relay"     // OPTIONS; shares of weights to lose are on standard input
	Sessions = "sessions"  // TLS clients; what they do is on standard input
	Stateful = "stateful"  // OPTIONS: an application that keeps states of sessions
	TLS      = "tls"       // OPTIONS: a TLS server
	SlowLink = "slow-link" // OPTIONS: between two interfaces
)

// a process is what its name stands for, and how many arguments it takes.
type process struct {
	arguments int
	run       func(ctx context.Context, arguments []string) error
}

// with is a process whose argument is its options in JSON.
func with[T any](run func(ctx context.Context, options T) error) process {
	return process{1, func(ctx context.Context, arguments []string) error {
		var options T
		if err := json.Unmarshal([]byte(arguments[0]), &options); err != nil {
			return fmt.Errorf("read options: %w", err)
		}
		return run(ctx, options)
	}}
}

var processes = map[string]process{
	App:      with(app.Run),
	Client:   {0, func(ctx context.Context, _ []string) error { return traffic.Run(ctx, os.Stdin, os.Stdout) }},
	Echo:     {2, func(ctx context.Context, a []string) error { return traffic.Echo(ctx, a[0], a[1]) }},
	HTTP3:    with(http3.Run),
	Peers:    {0, func(ctx context.Context, _ []string) error { return control.RunPeers(ctx, os.Stdin, os.Stdout) }},
	Sessions: {0, func(ctx context.Context, _ []string) error { return tlsclient.Run(ctx, os.Stdin, os.Stdout) }},
	Stateful: with(stateful.Run),
	TLS:      with(session.Serve),
	Member:   with(member.Run),
	Relay:    with(func(ctx context.Context, o relay.Options) error { return relay.Run(ctx, os.Stdin, o) }),
	SlowLink: with(func(ctx context.Context, o slowlink.Options) error { return slowlink.Run(ctx, os.Stdout, o) }),
}

// Main runs the process that the arguments behind Peer name, until it ends or is stopped, and returns its exit status.
func Main(arguments []string, complaints io.Writer) int {
	var one process
	if len(arguments) > 0 {
		one = processes[arguments[0]]
	}
	if one.run == nil || len(arguments) != 1+one.arguments {
		names := strings.Join(slices.Sorted(maps.Keys(processes)), ", ")
		fmt.Fprintf(complaints, "%s %s %s: not one of %s with its arguments: labs and benchmarks start these\n", Program, Peer, strings.Join(arguments, " "), names)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := one.run(ctx, arguments[1:]); err != nil {
		fmt.Fprintf(complaints, "%s %s %s: %v\n", Program, Peer, arguments[0], err)
		return 1
	}
	return 0
}
