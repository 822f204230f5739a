package console

import (
	"cmp"
	"context"
	"math"
	"net/url"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// sharesMost is how many clients and servers a page shows.
const sharesMost = 20

// sample is what the load balancers found, together.
type sample struct {
	At      int64     `json:"at"`      // of the oldest of their samples
	Seconds float64   `json:"seconds"` // of the longest
	Sampled uint64    `json:"sampled"` // packets that were looked at
	Packets uint64    `json:"packets"` // that these stand for
	Nodes   int       `json:"nodes"`   // that have told
	Missing []missing `json:"missing"`
	AtLeast bool      `json:"atLeast,omitempty"` // there may be more of each: some load balancers tell only of others
	Clients []share   `json:"clients"`
	Servers []share   `json:"servers"`
}

type missing struct {
	Node string `json:"node"`
	Why  string `json:"why"`
}

type share struct {
	Name    string  `json:"name"`
	Packets uint64  `json:"packets"`
	Share   float64 `json:"share"`
	Error   float64 `json:"error"` // 19 of 20 samples are within Share plus or minus this
}

// sample answers /sample.
func (s Source) sample(ctx context.Context, _ url.Values) (any, error) {
	found, err := s.Sample(ctx)
	if err != nil {
		return nil, err
	}
	return together(time.Now(), found), nil
}

// together adds up what load balancers found.
func together(now time.Time, found []Sampled) sample {
	sum := sample{At: now.UnixMilli(), Missing: []missing{}}
	var clients, servers [][]*ballastv1.SampleShare
	for _, f := range found {
		if f.Sample == nil {
			sum.Missing = append(sum.Missing, missing{f.Node, f.Missing})
			continue
		}
		sum.At = min(sum.At, now.Add(-f.Sample.Age.AsDuration()).UnixMilli())
		sum.Seconds = max(sum.Seconds, f.Sample.Seconds)
		sum.Sampled, sum.Packets, sum.Nodes = sum.Sampled+f.Sample.Sampled, sum.Packets+f.Sample.Packets, sum.Nodes+1
		sum.AtLeast = sum.AtLeast || f.Sample.Crowded || sum.Nodes > 1
		clients, servers = append(clients, f.Sample.Clients), append(servers, f.Sample.Servers)
	}
	sum.Clients, sum.Servers = sum.shares(clients), sum.shares(servers)
	return sum
}

// shares adds up lists of load balancers; those of each have an error by chance of their own.
func (s *sample) shares(lists [][]*ballastv1.SampleShare) []share {
	type total struct {
		packets uint64
		square  float64 // of the errors, in packets
	}
	of := map[string]total{}
	for _, list := range lists {
		for _, one := range list {
			t := of[one.Name]
			t.packets += one.Packets
			if one.Share > 0 {
				t.square += math.Pow(one.Error*float64(one.Packets)/one.Share, 2)
			}
			of[one.Name] = t
		}
	}
	all := []share{}
	for name, t := range of {
		if s.Packets > 0 {
			all = append(all, share{name, t.packets, min(float64(t.packets)/float64(s.Packets), 1), min(math.Sqrt(t.square)/float64(s.Packets), 1)})
		}
	}
	slices.SortFunc(all, func(a, b share) int { return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Name, b.Name)) })
	return all[:min(len(all), sharesMost)]
}
