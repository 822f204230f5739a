package controller

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/metricstest"
	"github.com/ballast-lb/ballast/internal/pki"
)

// scrapeOf asks controllers for metrics as Prometheus does.
func scrapeOf(t *testing.T, keepers map[string]*keeper) metricstest.Scrape {
	t.Helper()
	scrape := metricstest.Scrape{}
	for name, k := range keepers {
		scrape[name] = ""
		answer, err := http.Get("http://" + k.metrics + "/metrics")
		if err != nil {
			continue // it does not answer
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		fleettest.Require(t, err)
		scrape[name] = string(text)
	}
	return scrape
}

func TestFaultsOfControllersPage(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	operator := ca.Issue(pki.Ctl, "me")
	all := map[string]*keeper{"c1": startKeeper(t, ca, "c1", t.TempDir(), freeAddress(t))}
	await := func(what string, lines ...string) (scrape metricstest.Scrape) {
		t.Helper()
		fleettest.Await(t, what, func() bool {
			scrape = scrapeOf(t, all)
			for _, line := range lines {
				if !strings.Contains(scrape["c1"], line) {
					return false
				}
			}
			return true
		})
		return scrape
	}
	empty := await("it leads", "ballast_ready 1\n")
	metricstest.ExpectPages(t, "a fleet without services", nil, empty)
	apply(t, api.NewFleetClient([]string{all["c1"].address}, operator.Client()), fleettest.Service("web", 1000))
	metricstest.ExpectPages(t, "no load balancer", []string{"BallastNoLoadBalancer"}, await("the service is led", "ballast_controller_services_led 1\n"))
	fleettest.Join(t, all["c1"].address, ca.Issue(pki.LB, "lb1"))
	metricstest.ExpectPages(t, "a load balancer", nil, await("it is connected", `ballast_control_peers{role="lb"} 1`))

	all["c2"] = startKeeper(t, ca, "c2", t.TempDir(), freeAddress(t), all["c1"].address)
	awaitControllers(t, controllersOf(operator, all["c1"].address), "c1 voter alive", "c2 voter alive")
	good := await("two controllers", "ballast_controller_store_members 2\n", "ballast_controller_store_majority 1\n")
	all["c2"].stop()
	bad := await("one of two is no majority", "ballast_controller_store_majority 0\n", "ballast_ready 0\n", "ballast_controller_services_led 0\n")
	metricstest.ExpectPages(t, "no majority", []string{"BallastDown", "BallastNotReady", "BallastServicesWithoutLeader", "BallastStoreWithoutMajority"}, good, bad)
}

// An upgrade restarts one controller after the other. Each scrape here stands for 30 s of what lasts seconds.
func TestARollingRestartOfControllersPagesNobody(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	operator := ca.Issue(pki.Ctl, "me")
	names, all, dirs := []string{"c1", "c2", "c3"}, map[string]*keeper{}, map[string]string{}
	for i, name := range names {
		join := []string{}
		if i > 0 {
			join = append(join, all["c1"].address)
		}
		dirs[name] = t.TempDir()
		all[name] = startKeeper(t, ca, name, dirs[name], freeAddress(t), join...)
	}
	awaitControllers(t, controllersOf(operator, all["c1"].address), "c1 voter alive", "c2 voter alive", "c3 voter alive")
	apply(t, api.NewFleetClient([]string{all["c1"].address}, operator.Client()), fleettest.Service("web", 1000), fleettest.Service("dns", 1000))
	lb := ca.Issue(pki.LB, "lb1")
	joined := fleettest.Join(t, all["c1"].address, lb)
	var scrapes []metricstest.Scrape
	look := func() metricstest.Scrape {
		scrapes = append(scrapes, scrapeOf(t, all))
		return scrapes[len(scrapes)-1]
	}
	settled := func() bool {
		scrape, led := scrapeOf(t, all), 0
		for _, text := range scrape {
			if !strings.Contains(text, "ballast_ready 1\n") || !strings.Contains(text, "ballast_controller_store_majority 1\n") {
				return false
			}
			for _, count := range []int{1, 2} {
				if strings.Contains(text, fmt.Sprintf("ballast_controller_services_led %d\n", count)) {
					led += count
				}
			}
		}
		return led == 2
	}
	fleettest.Await(t, "all are well", settled)
	look()
	for i, name := range names {
		joined.Stream.CloseRequest()
		all[name].stop()
		if scrape := look(); scrape[name] != "" { // what the others say just then
			t.Errorf("%s answers", name)
		}
		joined = fleettest.Join(t, all[names[(i+1)%len(names)]].address, lb)
		look()
		all[name] = startKeeper(t, ca, name, dirs[name], all[name].address)
		look()
		fleettest.Await(t, "all are well again", settled)
		look()
	}
	metricstest.ExpectPages(t, "a rolling restart of controllers", nil, scrapes...)
}
