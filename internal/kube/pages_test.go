package kube

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	testingclient "k8s.io/client-go/testing"

	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/metricstest"
)

// scrapeOf asks a replica for metrics as Prometheus does, until a line is among them.
func scrapeOf(p *process, line string) (scrape metricstest.Scrape) {
	p.Helper()
	fleettest.Await(p, line, func() bool {
		answer, err := http.Get(p.url + "/metrics")
		fleettest.Require(p, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		fleettest.Require(p, err)
		scrape = metricstest.Scrape{"k1": string(text)}
		return strings.Contains("\n"+string(text), "\n"+line)
	})
	return scrape
}

// Promise: Where nobody leads, and where the leader cannot change the fleet, somebody is called; where all is well, nobody.
func TestFaultsOfAClusterPage(t *testing.T) {
	w := newWorld(t, node(1), service("web"), slice("web", 1))
	p := w.start("a")
	scrapeOf(p, "ballast_kube_leading 1\n")
	one := scrapeOf(p, "ballast_kube_passes_total{result=\"done\"} 3\n")
	well := scrapeOf(p, "ballast_kube_passes_total{result=\"done\"} 4\n")
	metricstest.ExpectPages(t, "a cluster that is in step", nil, one, well)
	w.down.Store(true)
	metricstest.ExpectPages(t, "controllers do not answer", []string{"BallastKubeBehind", "BallastNotReady"}, one, well, scrapeOf(p, "ballast_ready 0\n"))

	none := fake.NewClientset()
	none.PrependReactor("*", "leases", func(testingclient.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no right to it")
	})
	other := newWorld(t).startWith("b", none)
	metricstest.ExpectPages(t, "nobody leads", []string{"BallastKubeNobodyLeads", "BallastNotReady"}, scrapeOf(other, "ballast_kube_leading 0\n"))
}
