package quic

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/script"
)

// nginxVariable names an nginx with QUIC, where that of PATH has none, as that of Debian 12.
const nginxVariable = "BALLAST_NGINX"

// runNginx: clients keep their addresses, since nginx alone loses connections whose client has no second one when that changes (docs/quic.md).
func runNginx(run *scenario.Run) {
	program := cmp.Or(os.Getenv(nginxVariable), "nginx")
	said, err := exec.Command(program, "-V").CombinedOutput()
	if !strings.Contains(string(said), "http_v3_module") {
		script.Check(fmt.Errorf("%s -V tells of no http_v3_module (%v): %w: get one by %s=$(test/nginx-quic)", program, err, scenario.ErrUsage, nginxVariable))
	}
	for _, one := range []struct {
		name string
		with func(*fleet.Service)
	}{
		{"single pass", func(*fleet.Service) {}},
		{"four passes", func(s *fleet.Service) {
			s.QUIC = model.QUIC{Algorithm: model.QUICFourPass, ServerIDLength: 2, NonceLength: 17}
		}},
	} {
		with := service(scenario.VIP4, model.AffinityQUIC, model.DispatchRR)
		with.Health = world.Checks(model.CheckQUIC)
		one.with(with)
		outcome := run.Trial(setup(one.name, with), func(t *world.Trial) {
			changes(t, func(t *world.Trial) { t.StartNginxQUIC(program) }, 0, false)
		})
		run.Result.Expect(outcome.Throughout["download"] >= downloads/2, "%s: only %d downloads lasted from before the first event until after the last",
			one.name, outcome.Throughout["download"])
		run.Result.Expect(total(outcome, "forwarded_by_cookie") > 10*total(outcome, "forwarded_bad_cookie"), "%s: connection ids do not name servers", one.name)
	}
	hash := setup("hash", service(scenario.VIP4, model.AffinityHash, model.DispatchHash))
	hash.Baseline = true
	run.Trial(hash, func(t *world.Trial) {
		changes(t, func(t *world.Trial) { t.StartNginxQUIC(program) }, 0, false)
	})
}
