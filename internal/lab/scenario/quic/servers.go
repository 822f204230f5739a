package quic

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// nginxVariable names an nginx with QUIC, where that of PATH has none, as that of Debian 12.
const nginxVariable = "BALLAST_NGINX"

// variable names the program that test/NAME fetches: BALLAST_AIOQUIC, BALLAST_ENVOY, BALLAST_QUINN.
func variable(name string) string { return "BALLAST_" + strings.ToUpper(name) }

// findNginx returns how to start it. It must be there.
func findNginx() func(*world.Trial) {
	program := cmp.Or(os.Getenv(nginxVariable), "nginx")
	output, err := exec.Command(program, "-V").CombinedOutput()
	if !strings.Contains(string(output), "http_v3_module") {
		script.Check(fmt.Errorf("%s -V tells of no http_v3_module (%v): %w: get one by %s=$(test/nginx-quic)", program, err, scenario.ErrUsage, nginxVariable))
	}
	return func(t *world.Trial) { t.Foreign.StartNginxQUIC(program) }
}

// find returns how to start a server that is fetched; nil: it is not.
func find(name string) func(*world.Trial) {
	program := os.Getenv(variable(name))
	if program == "" {
		return nil
	}
	return func(t *world.Trial) { t.Foreign.StartQUIC(program) }
}

// runServers: clients of nginx keep their addresses, since it loses connections whose client has no second one when that changes (docs/features/quic.md).
func runServers(run *scenario.Run) {
	nginx := findNginx()
	for _, one := range []struct {
		name  string
		start func(*world.Trial)
		moves time.Duration
		with  func(*fleet.Service)
	}{
		{"nginx", nginx, 0, func(*fleet.Service) {}},
		{"nginx four-pass", nginx, 0, func(s *fleet.Service) {
			s.QUIC = model.QUIC{Algorithm: model.QUICFourPass, ServerIDLength: 2, NonceLength: 17}
		}},
		{"aioquic", find("aioquic"), moves, func(*fleet.Service) {}},
		{"envoy", find("envoy"), moves, func(*fleet.Service) {}},
		{"quinn", find("quinn"), moves, func(*fleet.Service) {}},
	} {
		if one.start == nil {
			run.Progress("%s: left out: %s=$(test/%s) names it", one.name, variable(one.name), one.name)
			continue
		}
		with := service(scenario.VIP4, model.AffinityQUIC, model.DispatchRR)
		with.Health = world.Checks(model.CheckQUIC)
		one.with(with)
		outcome := run.Trial(setup(one.name, with), func(t *world.Trial) { changes(t, one.start, one.moves, false) })
		run.Result.Expect(outcome.Throughout["download"] >= downloads/2, "%s: only %d downloads lasted from before the first event until after the last",
			one.name, outcome.Throughout["download"])
		addedServe(run, outcome)
		run.Result.Expect(total(outcome, "forwarded_by_cookie") > 10*total(outcome, "forwarded_bad_cookie"), "%s: connection ids do not name servers", one.name)
	}
	hash := setup("hash", service(scenario.VIP4, model.AffinityHash, model.DispatchHash))
	hash.Baseline = true
	run.Trial(hash, func(t *world.Trial) { changes(t, nginx, 0, false) })
}
