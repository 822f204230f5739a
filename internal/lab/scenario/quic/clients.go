package quic

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/software"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// What proves something: requests, or downloads, that were answered, and how often ports were forgotten.
const (
	browsedMin     = 50
	browsedMoves   = 5
	aioquicClients = 60
)

// aioquicClient is beside the server that test/aioquic names.
const aioquicClient = "client"

// runClients has others' clients keep their connections while a translator of addresses forgets their ports.
func runClients(run *scenario.Run) {
	if _, err := exec.LookPath(software.Browser); err != nil {
		script.Check(fmt.Errorf("%w: %w: install it", err, scenario.ErrUsage))
	}
	servers := browse(run, "chromium", 1, func(t *world.Trial) *software.Visit {
		certificate := t.Foreign.Certificate()
		t.Endpoints.StartHTTP3(false, certificate)
		software.Translate(t.Lab, world.ClientNode)
		return t.Foreign.Visit(certificate, true)
	})
	run.Result.Expect(len(servers) == 1, "chromium: requests reached %v", servers)
	server := os.Getenv(variable("aioquic"))
	if server == "" {
		run.Progress("aioquic: left out: %s=$(test/aioquic) names it", variable("aioquic"))
		return
	}
	client := filepath.Join(filepath.Dir(server), aioquicClient)
	servers = browse(run, "aioquic", aioquicClients, func(t *world.Trial) *software.Visit {
		t.Endpoints.StartHTTP3(false, "")
		software.Translate(t.Lab, world.ClientNode)
		return t.Foreign.VisitBy(client)
	})
	run.Result.Expect(len(servers) > 1, "aioquic: all connections reached %v", servers)
}

// browsed is what a client has seen of its requests, or its connections.
type browsed struct {
	Servers   []string `json:"servers"`
	Protocols []string `json:"protocols"` // as ALPN names them
	Failed    int      `json:"failed"`
}

// browse returns the servers that a client's requests reached, without repetitions. It has so many connections.
func browse(run *scenario.Run, name string, connections int, start func(*world.Trial) *software.Visit) []string {
	var browsed browsed
	ports := 0
	outcome := run.Uncounted(setup(name, service(scenario.VIP4, model.AffinityQUIC, model.DispatchRR)), func(t *world.Trial) { ports = start(t).EndBehindNAT(t.Lab, &browsed) })
	run.Result.AddTrial(outcome, false)
	different := func(all []string) []string { return slices.Compact(slices.Sorted(slices.Values(all))) }
	protocols := different(browsed.Protocols)
	run.Result.Measure("answered_"+name, float64(len(browsed.Servers)))
	run.Result.Measure("failed_"+name, float64(browsed.Failed))
	run.Result.Measure("ports_"+name, float64(ports))
	run.Result.Expect(browsed.Failed == 0 && len(browsed.Servers) >= browsedMin, "%s: %d failed, %d were answered", name, browsed.Failed, len(browsed.Servers))
	run.Result.Expect(len(browsed.Protocols) >= browsedMin && len(protocols) == 1 && protocols[0] == "h3", "%s: %d were by %v", name, len(browsed.Protocols), protocols)
	run.Result.Expect(ports >= connections+browsedMoves, "%s: %d connections came from only %d ports", name, connections, ports)
	run.Result.Expect(total(outcome, "forwarded_by_cookie") > 0, "%s: no connection id named a server", name)
	return different(browsed.Servers)
}
