// Package factors says why a server gets what it gets: a line for each thing that decides, with how old that is. It is pure.
package factors

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// A Factor is one thing that decides.
type Factor struct {
	Name string `json:"name"` // state, health, weight, load, capacity, slow start, share, doubt
	Text string `json:"text"` // for people
}

// Known is what is known of a service's servers.
type Known struct {
	Service *model.Service
	Servers []*ballastv1.ServerStatus // of the service, removed ones included
	Lost    []string                  // load balancers that may still send by older figures
	Now     time.Time                 // when this was asked
}

// Of returns the factors of one of the servers. What is not known is said to be, with the reason.
func (k *Known) Of(s *ballastv1.ServerStatus) []Factor {
	list := []Factor{{"state", k.state(s)}, {"health", k.health(s)}, {"weight", k.weight(s)}, {"load", k.load(s)}}
	if k.Service.Dispatch.ByClasses() {
		list = append(list, Factor{"capacity", k.capacity(s)})
	}
	list = append(list, Factor{"slow start", k.slowStart(s)}, Factor{"share", k.share(s)})
	if len(k.Lost) > 0 {
		list = append(list, Factor{"doubt", "not connected, and may still send by older figures: " + strings.Join(k.Lost, ", ")})
	}
	return list
}

func (k *Known) state(s *ballastv1.ServerStatus) string {
	switch state := s.GetServer().GetState(); {
	case s.Removed:
		return "removed from the configuration: gets no new connections, keeps those that it has"
	case state == model.StateDraining.String() && s.Server.Deadline != nil:
		return "draining until " + s.Server.Deadline.AsTime().Format(time.RFC3339) + ": gets no new connections"
	case state == model.StateDraining.String():
		return "draining: gets no new connections"
	case state == model.StateOff.String():
		return "off: gets no packets"
	}
	return "active"
}

func (k *Known) health(s *ballastv1.ServerStatus) string {
	text := s.Health
	if s.HealthDetail != "" {
		text += ": " + s.HealthDetail
	}
	switch {
	case s.Removed:
		return "not checked: it is removed"
	case s.Health == "unchecked":
		return "not checked: the service has no checks"
	case s.HealthAge != nil:
		return text + ", last reported " + ago(s.HealthAge)
	case s.Health == "unknown":
		return "not known because " + cmp.Or(s.HealthDetail, "no load balancer has reported here how it sees it")
	}
	return text + ", not known here since when: decided elsewhere, or before"
}

func (k *Known) weight(s *ballastv1.ServerStatus) string {
	text := fmt.Sprintf("%d as configured", s.GetServer().GetWeight())
	switch d := k.Service.Dispatch; {
	case s.Removed:
		return "none: it is removed"
	case s.Server.GetWeight() == 0:
		return text + ": gets no new connections"
	case alike(d):
		return fmt.Sprintf("%s, which %s does not look at", text, d)
	case d.FollowsLoad():
		return text + ", for the size that load is compared by"
	}
	return text
}

// alike reports whether a policy gives all servers the same, whatever their weights are.
func alike(d model.Dispatch) bool { return d == model.DispatchRR || d == model.DispatchHash }

func (k *Known) load(s *ballastv1.ServerStatus) string {
	follows := k.Service.FollowsLoad()
	if s.LoadSource == "" {
		switch {
		case follows && !k.decides() && !k.Service.ComparesReports():
			return "not known here: controllers receive it, and decide by it"
		case follows:
			return "not known because nothing has reported it of late: the server counts as the mean of the others"
		case k.Service.Dispatch.ComparesLoads():
			return k.compares()
		}
		return "not measured: " + k.Service.Dispatch.String() + " does not go by it"
	}
	text := measured(s) + age(s.LoadAge, ", reported ")
	switch wanted := k.Service.Load.Source.String(); {
	case !follows && k.Service.Dispatch.ComparesLoads():
		return text + "; " + k.compares()
	case !follows:
		return text + "; " + k.Service.Dispatch.String() + " does not go by it"
	case s.LoadSource != wanted:
		return fmt.Sprintf("%s; by %s, because %s has reported nothing of late", text, s.LoadSource, wanted)
	}
	return text
}

// decides reports whether who was asked decides weights: it knows how old that of one server is at least. Servers that get nothing have none.
func (k *Known) decides() bool {
	return slices.ContainsFunc(k.Servers, func(s *ballastv1.ServerStatus) bool { return s.WeightAge != nil })
}

// compares is what p2c and least do without reports.
func (k *Known) compares() string {
	return "each load balancer compares the open connections that it counts"
}

// measured is a load in the unit of its source.
func measured(s *ballastv1.ServerStatus) string {
	switch s.LoadSource {
	case "cpu":
		return fmt.Sprintf("%.0f %% of its CPUs in use", 100*s.Load)
	case "packets":
		return fmt.Sprintf("%.0f packets a second", s.Load)
	case "bytes":
		return fmt.Sprintf("%.1f kB a second", s.Load/1000)
	case "endpoint":
		return fmt.Sprintf("%.1f requests outstanding", s.Load)
	case "estimate":
		return fmt.Sprintf("about %.1f connections open", s.Load)
	}
	return fmt.Sprintf("%.1f connections open or waiting", s.Load)
}

func (k *Known) capacity(s *ballastv1.ServerStatus) string {
	if s.LoadSource == "" {
		return "not known because its load is not"
	}
	text := fmt.Sprintf("%.1f left", s.Available)
	if s.LoadSource == "cpu" {
		text = fmt.Sprintf("%.2f CPUs left", s.Available)
	}
	if s.Kept > 0 && s.Kept < 0.995 {
		text += fmt.Sprintf(", after %.0f %% less for answers that failed of late", 100*(1-s.Kept))
	}
	return text
}

func (k *Known) slowStart(s *ballastv1.ServerStatus) string {
	switch {
	case s.WholeAt != nil:
		return fmt.Sprintf("%.0f %% of its share at the load balancer that is furthest behind, all of it in %s", 100*s.SlowStart, span(s.WholeAt.AsTime().Sub(k.Now)))
	case k.Service.SlowStart == 0:
		return "none is configured"
	}
	return "over, or not begun: no load balancer reports one"
}

func (k *Known) share(s *ballastv1.ServerStatus) string {
	takers, sum := 0, uint64(0)
	for _, one := range k.Servers {
		if one.Weight > 0 {
			takers, sum = takers+1, sum+uint64(one.Weight)
		}
	}
	d := k.Service.Dispatch
	of := "new connections"
	if d == model.DispatchMaglev || d == model.DispatchWCMP || d == model.DispatchHash {
		of = "the table's slots"
	}
	switch {
	case s.Weight == 0 && s.Health == "unhealthy":
		return "none: it is unhealthy"
	case s.Weight == 0 && s.GetServer().GetWeight() > 0 && s.Server.State == model.StateActive.String() && d.FollowsLoad():
		return "none: nothing is left of its capacity" + age(s.WeightAge, ", decided ")
	case s.Weight == 0:
		return "none: it gets no new connections"
	case alike(d):
		return fmt.Sprintf("1 of %d: %s of %s", takers, percent(1, uint64(takers)), of)
	}
	text := fmt.Sprintf("%d of %d: about %s of %s", s.Weight, sum, percent(uint64(s.Weight), sum), of)
	if d.ComparesLoads() {
		text += " where servers are alike"
	}
	return text + age(s.WeightAge, ", decided ")
}

func percent(part, whole uint64) string {
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

// age adds how old something is, if that is known.
func age(d *durationpb.Duration, before string) string {
	if d == nil {
		return ""
	}
	return before + ago(d)
}

func ago(d *durationpb.Duration) string { return span(d.AsDuration()) + " ago" }

func span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.0f h", d.Hours())
}
