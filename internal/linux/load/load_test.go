package load

import (
	"context"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// start runs a sampler in the namespace until the test ends; reports come by the channel, old ones are dropped.
func start(t *testing.T, space *netspace.Space, o Options, interval time.Duration, services ...Service) (*Sampler, <-chan Report) {
	t.Helper()
	return startPaced(t, space, o, func() time.Duration { return interval }, services...)
}

func startPaced(t *testing.T, space *netspace.Space, o Options, interval func() time.Duration, services ...Service) (*Sampler, <-chan Report) {
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
		s.Run(ctx, interval, func(r Report) {
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

func TestReportsTellConnectionsAndTheirMean(t *testing.T) {
	space := newSpace(t)
	listener := listen(t, space, "0.0.0.0:80", 16)
	slow := Options{MostCPU: 100} // a machine on which a sample takes long still takes all of them
	s, reports := start(t, space, slow, 50*time.Millisecond, followed("web", vip4, 80), service("six", vip6, 80),
		Service{Name: "dns", Protocol: model.ProtocolUDP, VIP: service("", vip4).VIP, Ports: []uint16{53}, ByConnections: true},
		Service{Name: "quiet", Protocol: model.ProtocolUDP, VIP: service("", vip4).VIP, Ports: []uint16{54}},
		Service{Name: "pods", VIP: service("", vip4).VIP, Ports: []uint16{81}, Translated: true},
		Service{Name: "asked", VIP: service("", vip4).VIP, Ports: []uint16{82}, Translated: true, ByConnections: true})
	r := await.Value(t, reports, "web is idle", func(r Report) bool { return len(r.Services) == 2 && r.HasCPU })
	if r.Services[0] != (ServiceLoad{Service: "web"}) || r.CPUs < 1 || r.Samples < 1 {
		t.Errorf("have %+v", r)
	}
	unavailable := strings.Join(r.Unavailable, "\n")
	if strings.Contains(unavailable, "quiet") || strings.Contains(unavailable, "pods") {
		t.Errorf("that there are no connections is a problem where nobody asks for them: %q", r.Unavailable)
	}
	for _, want := range []string{"connections of dns: udp has none", "connections of asked: this host does not have its address", "connections of six: nothing listens on [2001:db8:51::10]:80"} {
		if !strings.Contains(unavailable, want) {
			t.Errorf("it does not say %q: %q", want, r.Unavailable)
		}
	}
	dial(t, space, vip4+":80", 6)
	accept(t, listener, 4)
	await.Value(t, reports, "four are accepted, two wait, and the mean has come up", func(r Report) bool {
		return len(r.Services) > 0 && r.Services[0] == ServiceLoad{"web", 4, 2, 6}
	})
	s.SetServices([]Service{followed("other", vip4, 80)})
	await.Value(t, reports, "there is the other service", func(r Report) bool {
		return len(r.Services) == 1 && r.Services[0] == ServiceLoad{"other", 4, 2, 6}
	})
	s.SetServices(nil)
	await.Value(t, reports, "there are no services", func(r Report) bool { return len(r.Services) == 0 && len(r.Unavailable) == 0 })
}

func followed(name, vip string, port uint16) Service {
	s := service(name, vip, port)
	s.Followed = true
	return s
}

// Where nobody follows the load there is one sample for each report. When somebody does, the next report comes at once, of CPU time since then.
func TestLoadIsSampledWhereSomebodyFollowsIt(t *testing.T) {
	space := newSpace(t)
	listener := listen(t, space, "0.0.0.0:80", 16)
	var period atomic.Int64
	period.Store(int64(time.Hour))
	s, reports := startPaced(t, space, Options{MostCPU: 100}, func() time.Duration { return time.Duration(period.Load()) }, service("web", vip4, 80))
	r := await.Value(t, reports, "the first report comes soon", func(r Report) bool { return len(r.Services) == 1 })
	if !r.HasCPU || r.Samples > 3 {
		t.Errorf("have %+v", r)
	}
	dial(t, space, vip4+":80", 3)
	accept(t, listener, 3)
	period.Store(int64(100 * time.Millisecond))
	s.SetServices([]Service{followed("web", vip4, 80)})
	r = await.Value(t, reports, "the next report does not wait for the period before", func(Report) bool { return true })
	if !r.HasCPU || len(r.Services) != 1 || r.Services[0].Connections != 3 || math.Abs(r.Services[0].MeanQueue-3) > 1e-9 {
		t.Errorf("%+v", r)
	}
	if r.Samples < 5 {
		t.Errorf("%d samples", r.Samples)
	}
}

func TestSamplersThatCannotKeepUpSaySo(t *testing.T) {
	space := newSpace(t)
	listen(t, space, "0.0.0.0:80", 1)
	_, reports := start(t, space, Options{MostCPU: 1e-3}, 10*time.Millisecond, service("web", vip4, 80))
	r := await.Value(t, reports, "it is said", func(r Report) bool { return len(r.Unavailable) > 0 })
	if said := r.Unavailable[0]; !strings.HasPrefix(said, "a report every 10ms: one sample takes ") || !strings.HasSuffix(said, "to take at most 0.1 % of a CPU") {
		t.Errorf("it says %q", said)
	}
}

func TestWhatDoesNotWorkIsReported(t *testing.T) {
	space := newSpace(t)
	_, reports := start(t, space, Options{Cgroup: "/none"}, 10*time.Millisecond, service("web", vip4, 80))
	r := await.Value(t, reports, "it is said", func(r Report) bool { return len(r.Unavailable) > 0 })
	if r.HasCPU || !strings.HasPrefix(r.Unavailable[0], "cpu: read the CPU time of control group /none: ") {
		t.Errorf("have %+v", r)
	}
}

func TestSamplesAreAsManyAsCanBeAfforded(t *testing.T) {
	m := measurement{sampler: &Sampler{options: Options{Rate: 100, MostCPU: 0.02}}, targets: &targets{followed: true}}
	const wanted = 200 * time.Millisecond
	for _, c := range []struct {
		cost, interval time.Duration
		samples        float64 // in an interval
	}{
		{100 * time.Microsecond, wanted, 20}, // 100 a second cost 1 %
		{time.Millisecond, wanted, 4},        // 20 a second
		{4 * time.Millisecond, wanted, 1},
		{10 * time.Millisecond, 500 * time.Millisecond, 1},
	} {
		m.cost = c.cost
		interval := m.affordable(wanted)
		between := (m.gap(interval, 0) + m.gap(interval, 1)) / 2
		samples := 1.0
		if between < never {
			samples += float64(interval) / float64(between)
		}
		if interval != c.interval || math.Abs(samples-c.samples) > 0.01 {
			t.Errorf("a sample of %s: %.2f in %s, want %v in %s", c.cost, samples, interval, c.samples, c.interval)
		}
	}
}
