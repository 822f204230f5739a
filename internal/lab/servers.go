// What runs on the servers of a lab: nginx, or an application server of known capacity.
package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/app"
)

// AppServer describes an application server (`internal/lab/process/app`).
type AppServer struct {
	CPUs   float64 // that it gets; if the machine limits no CPU, its work is sleeping at this speed instead
	Sleep  bool    // its work is sleeping in any case
	Shared bool    // requests share it; else they are served in order
	Limit  int64   // requests at once, beyond which it refuses; 0: none
}

// How the servers' work is done.
const (
	workBurns  = "CPU time, limited by cgroups"
	workSleeps = "sleeping"
	workSends  = "sending, limited by the links"
)

// startServers starts what is to run on all servers and waits until all of it answers.
func (l *Lab) startServers(ctx context.Context) error {
	root, limits := findCgroups()
	l.work = l.howWorkIsDone(limits)
	errs := make([]error, len(l.topo.Servers))
	var starting sync.WaitGroup
	for i, server := range l.topo.Servers {
		starting.Go(func() {
			if name := serverName(i + 1); server.App == nil {
				errs[i] = l.startNginx(ctx, name)
			} else {
				errs[i] = l.startApp(ctx, name, *server.App, root, limits == nil)
			}
		})
	}
	starting.Wait()
	return errors.Join(errs...)
}

// howWorkIsDone tells what bounds the servers, which have no CPU limits for the given reason.
func (l *Lab) howWorkIsDone(noLimits error) string {
	apps := func(server ServerNode) bool { return server.App != nil }
	switch {
	case !slices.ContainsFunc(l.topo.Servers, apps):
		return workSends
	case noLimits != nil:
		return fmt.Sprintf("%s (%v)", workSleeps, noLimits)
	default:
		return workBurns
	}
}

// startApp starts an application server on port 80 and waits until it answers.
func (l *Lab) startApp(ctx context.Context, node string, what AppServer, root cgroupRoot, limits bool) error {
	limits = limits && !what.Sleep
	options, err := json.Marshal(app.Options{
		Address: ":80", Server: node, Sleep: !limits, Speed: what.CPUs, Shared: what.Shared, Limit: what.Limit,
	})
	if err != nil {
		return fmt.Errorf("encode options: %w", err)
	}
	// Two threads of Go code: the one that works and one for the network.
	p, err := l.start(spawn{node: node, program: l.Processes, arguments: []string{process.App, string(options)}, environment: []string{"GOMAXPROCS=2"}})
	if err != nil {
		return err
	}
	if err := l.awaitPort(ctx, p, node, netip.MustParseAddrPort("127.0.0.1:80")); err != nil {
		return err
	}
	if limits {
		return l.limitCPU(root, p, node, what.CPUs)
	}
	return nil
}
