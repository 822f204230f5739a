package console

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
)

func shareOf(name string, packets uint64, of, err float64) *ballastv1.SampleShare {
	return &ballastv1.SampleShare{Name: name, Packets: packets, Share: of, Error: err}
}

// Promise: Samples of load balancers are added up with their errors and the age of the oldest; who gave none is named with the reason.
func TestSamplesAreAddedUp(t *testing.T) {
	now := time.Unix(1e9, 0)
	one := &ballastv1.Sample{Seconds: 5, Sampled: 100, Packets: 1000, Clients: []*ballastv1.SampleShare{shareOf("203.0.113.0/24", 600, 0.6, 0.03), shareOf("192.0.2.0/24", 400, 0.4, 0.03)}}
	two := &ballastv1.Sample{Seconds: 4, Sampled: 50, Packets: 3000, Age: durationpb.New(7 * time.Second), Clients: []*ballastv1.SampleShare{shareOf("203.0.113.0/24", 2400, 0.8, 0.04)}}
	sum := together(now, []Sampled{{Node: "lb1", Sample: one}, {Node: "lb2", Sample: two}, {Node: "lb3", Missing: "a trace is running already"}})
	if sum.At != now.Add(-7*time.Second).UnixMilli() || sum.Packets != 4000 || sum.Sampled != 150 || sum.Nodes != 2 || sum.Seconds != 5 || !sum.AtLeast {
		t.Errorf("%+v", sum)
	}
	if len(sum.Missing) != 1 || sum.Missing[0] != (missing{"lb3", "a trace is running already"}) {
		t.Errorf("missing: %v", sum.Missing)
	}
	first := sum.Clients[0]
	if want := math.Hypot(0.03*1000, 0.04*3000) / 4000; first.Name != "203.0.113.0/24" || first.Packets != 3000 || first.Share != 0.75 || math.Abs(first.Error-want) > 1e-9 {
		t.Errorf("%+v, want an error of %v", first, want)
	}
}

// Nothing is known of load balancers that are all silent: that is no sample without packets.
func TestASampleThatNobodyTookIsNone(t *testing.T) {
	sum := together(time.Unix(1e9, 0), []Sampled{{Node: "lb1", Missing: "its connection ended"}})
	if sum.Nodes != 0 || len(sum.Missing) != 1 || len(sum.Clients) != 0 || sum.Clients == nil {
		t.Errorf("%+v", sum)
	}
}

// What a load balancer says that is broken or not ours makes no page fail: numbers that cannot be written, and names with markup.
func TestForgedSamplesAreData(t *testing.T) {
	forged := &ballastv1.Sample{Seconds: 5, Sampled: 1, Packets: math.MaxUint64, Clients: []*ballastv1.SampleShare{
		shareOf("<img src=x onerror=alert(1)>", math.MaxUint64, 1e-300, 1), shareOf("x", 1, 0, 1)}}
	s := serveAll(t, Options{}, small, Source{Sample: func(context.Context) ([]Sampled, error) {
		return []Sampled{{Node: "lb1", Sample: forged}, {Node: "lb2", Sample: forged}}, nil
	}})
	answer, text := s.ask(noRedirect(), "GET", "/sample", nil)
	var sum sample
	if err := json.Unmarshal([]byte(text), &sum); err != nil || answer.StatusCode != http.StatusOK || strings.Contains(text, "<img") {
		t.Errorf("%v: %s %s", err, answer.Status, text)
	}
	for _, c := range sum.Clients {
		if c.Share < 0 || c.Share > 1 || c.Error < 0 || c.Error > 1 {
			t.Errorf("%+v", c)
		}
	}
}

func TestASampleThatCannotBeTakenSaysWhy(t *testing.T) {
	s := serveAll(t, Options{}, small, Source{Sample: func(context.Context) ([]Sampled, error) { return nil, errors.New("others ask just now") }})
	if answer, text := s.ask(noRedirect(), "GET", "/sample", nil); answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "others ask") {
		t.Errorf("%s %s", answer.Status, text)
	}
}

// Nobody takes a sample while nobody looks, and who leaves ends it.
func TestASampleIsTakenOnlyForWhoWaits(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	s := serveAll(t, Options{}, small, Source{Sample: func(ctx context.Context) ([]Sampled, error) {
		close(began)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	}})
	if watching := s.watch(nil); true {
		watching.next()
	}
	select {
	case <-began:
		t.Fatal("a page that is open takes a sample")
	default:
	}
	ctx, leave := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, "GET", "http://"+s.address+"/sample", nil)
	fleettest.Require(t, err)
	go http.DefaultClient.Do(request)
	<-began
	leave()
	<-ended
}
