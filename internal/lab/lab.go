// Package lab has all scenarios: what `ballast-lab` lists and runs.
//
// A lab is a whole network of namespaces on one machine (package world) with the real Ballast, clients and servers in it. A scenario
// breaks things in it on purpose.
package lab

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/scenario/affinity"
	"github.com/ballast-lb/ballast/internal/lab/scenario/benefit"
	"github.com/ballast-lb/ballast/internal/lab/scenario/bgp"
	"github.com/ballast-lb/ballast/internal/lab/scenario/churn"
	"github.com/ballast-lb/ballast/internal/lab/scenario/compare"
	"github.com/ballast-lb/ballast/internal/lab/scenario/control"
	"github.com/ballast-lb/ballast/internal/lab/scenario/drain"
	"github.com/ballast-lb/ballast/internal/lab/scenario/elastic"
	"github.com/ballast-lb/ballast/internal/lab/scenario/health"
	"github.com/ballast-lb/ballast/internal/lab/scenario/migrate"
	"github.com/ballast-lb/ballast/internal/lab/scenario/mptcp"
	"github.com/ballast-lb/ballast/internal/lab/scenario/pair"
	"github.com/ballast-lb/ballast/internal/lab/scenario/path"
	"github.com/ballast-lb/ballast/internal/lab/scenario/pool"
	"github.com/ballast-lb/ballast/internal/lab/scenario/quic"
	"github.com/ballast-lb/ballast/internal/lab/scenario/replicated"
	"github.com/ballast-lb/ballast/internal/lab/scenario/rotation"
	"github.com/ballast-lb/ballast/internal/lab/scenario/sessions"
	"github.com/ballast-lb/ballast/internal/lab/scenario/shell"
	"github.com/ballast-lb/ballast/internal/lab/scenario/table"
	"github.com/ballast-lb/ballast/internal/lab/scenario/through"
	"github.com/ballast-lb/ballast/internal/lab/scenario/throughput"
	"github.com/ballast-lb/ballast/internal/lab/scenario/twotier"
)

// Scenarios lists all scenarios by name.
func Scenarios() []scenario.Scenario {
	all := slices.Concat(
		affinity.Scenarios, benefit.Scenarios, bgp.Scenarios, churn.Scenarios, compare.Scenarios, control.Scenarios, drain.Scenarios, elastic.Scenarios, health.Scenarios, migrate.Scenarios, mptcp.Scenarios, pair.Scenarios, path.Scenarios, pool.Scenarios, quic.Scenarios, replicated.Scenarios, rotation.Scenarios, sessions.Scenarios, shell.Scenarios, table.Scenarios, through.Scenarios, throughput.Scenarios, twotier.Scenarios,
	)
	slices.SortFunc(all, func(a, b scenario.Scenario) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Run runs a scenario by its name.
func Run(ctx context.Context, name string, options scenario.Options) (scenario.Result, error) {
	var names []string
	for _, known := range Scenarios() {
		if known.Name == name {
			return known.Run(ctx, options)
		}
		names = append(names, known.Name)
	}
	return scenario.Result{}, fmt.Errorf("run scenario %q: %w: there is none of that name: use one of %s", name, scenario.ErrUsage, strings.Join(names, " "))
}
