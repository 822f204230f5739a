package load

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/netspace"
	"github.com/ballast-lb/ballast/internal/model"
)

// start runs a sampler in the namespace until the test ends; reports come by the channel, old ones are dropped.
func start(t *testing.T, space *netspace.Space, o Options, interval time.Duration, services ...Service) (*Sampler, <-chan Report) {
	t.Helper()
	var s *Sampler
	check(t, space.Do(func() error {
		s = New(o)
		return nil
	}))
	s.SetServices(services)
	ctx, cancel := context.WithCancel(context.Background())
	reports, done := make(chan Report, 1), make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx, func() time.Duration { return interval }, func(r Report) {
			select {
			case <-reports:
			default:
			}
			reports <- r
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return s, reports
}

// awaitReport returns the first report that is as wanted.
func awaitReport(t *testing.T, reports <-chan Report, what string, wanted func(Report) bool) Report {
	t.Helper()
	var last Report
	for end := time.After(deadline); ; {
		select {
		case last = <-reports:
			if wanted(last) {
				return last
			}
		case <-end:
			t.Fatalf("no report in which %s; the last one: %+v", what, last)
		}
	}
}

func TestReportsTellConnectionsAndTheirMean(t *testing.T) {
	space := newSpace(t)
	listener := listen(t, space, "0.0.0.0:80", 16)
	s, reports := start(t, space, Options{}, 50*time.Millisecond, service("web", vip4, 80), service("six", vip6, 80),
		Service{Name: "dns", Protocol: model.ProtocolUDP, VIP: service("", vip4).VIP, Ports: []uint16{53}})
	r := awaitReport(t, reports, "web is idle", func(r Report) bool { return len(r.Services) == 2 && r.HasCPU })
	if r.Services[0] != (ServiceLoad{Service: "web"}) || r.CPUs < 1 || r.Samples < 1 {
		t.Errorf("have %+v", r)
	}
	unavailable := strings.Join(r.Unavailable, "\n")
	for _, want := range []string{"connections of dns: udp has none", "connections of six: nothing listens on [2001:db8:51::10]:80"} {
		if !strings.Contains(unavailable, want) {
			t.Errorf("it does not say %q: %q", want, r.Unavailable)
		}
	}
	dial(t, space, vip4+":80", 6)
	accept(t, listener, 4)
	r = awaitReport(t, reports, "the mean has come up", func(r Report) bool { return len(r.Services) > 0 && r.Services[0].MeanQueue == 6 })
	if r.Services[0] != (ServiceLoad{"web", 4, 2, 6}) {
		t.Errorf("have %+v", r)
	}
	s.SetServices([]Service{service("other", vip4, 80)})
	awaitReport(t, reports, "there is the other service", func(r Report) bool {
		return len(r.Services) == 1 && r.Services[0] == ServiceLoad{"other", 4, 2, 6}
	})
	s.SetServices(nil)
	awaitReport(t, reports, "there are no services", func(r Report) bool { return len(r.Services) == 0 && len(r.Unavailable) == 0 })
}

func TestSamplersThatCannotKeepUpSaySo(t *testing.T) {
	space := newSpace(t)
	listen(t, space, "0.0.0.0:80", 1)
	_, reports := start(t, space, Options{MostCPU: 1e-3}, 10*time.Millisecond, service("web", vip4, 80))
	r := awaitReport(t, reports, "it is said", func(r Report) bool { return len(r.Unavailable) > 0 })
	if said := r.Unavailable[0]; !strings.HasPrefix(said, "a report every 10ms: one sample takes ") || !strings.HasSuffix(said, "to take at most 0.1 % of a CPU") {
		t.Errorf("it says %q", said)
	}
}

func TestWhatDoesNotWorkIsReported(t *testing.T) {
	space := newSpace(t)
	_, reports := start(t, space, Options{Cgroup: "/none"}, 10*time.Millisecond, service("web", vip4, 80))
	r := awaitReport(t, reports, "it is said", func(r Report) bool { return len(r.Unavailable) > 0 })
	if r.HasCPU || !strings.HasPrefix(r.Unavailable[0], "cpu: read the CPU time of control group /none: ") {
		t.Errorf("have %+v", r)
	}
}

func TestSamplesAreAsManyAsCanBeAfforded(t *testing.T) {
	m := measurement{sampler: &Sampler{options: Options{Rate: 100, MostCPU: 0.02}}}
	for _, c := range []struct {
		cost, least, most, interval time.Duration
	}{
		{100 * time.Microsecond, 5 * time.Millisecond, 15 * time.Millisecond, 20 * time.Millisecond}, // 100 a second would cost 1 %
		{time.Millisecond, 25 * time.Millisecond, 75 * time.Millisecond, 50 * time.Millisecond},      // 10 %
		{10 * time.Millisecond, 250 * time.Millisecond, 750 * time.Millisecond, 500 * time.Millisecond},
	} {
		m.cost = c.cost
		if least, most := m.gap(0), m.gap(1); least != c.least || most != c.most {
			t.Errorf("a sample of %s: %s to %s apart, want %s to %s", c.cost, least, most, c.least, c.most)
		}
		if have := m.affordable(20 * time.Millisecond); have != c.interval {
			t.Errorf("a sample of %s: reports every %s, want %s", c.cost, have, c.interval)
		}
	}
}
