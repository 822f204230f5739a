package hub

import (
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/machine/balance"
)

func TestTrafficIsTakenAsReportedAndThatOfNoServerIsIgnored(t *testing.T) {
	have := trafficFromProto(&ballastv1.TrafficReport{Servers: []*ballastv1.ServerTraffic{
		{Service: "web", Id: 7, Connections: 1, Closed: 2, Packets: 3, Bytes: 4, Open: new(uint32(5))}, {Service: "web", Id: idMax + 1, Bytes: 1}}})
	want := []engine.ServerTraffic{{Service: "web", ID: 7, Seen: balance.Seen{Connections: 1, Closed: 2, Packets: 3, Bytes: 4, Estimate: new(uint32(5))}}}
	if !reflect.DeepEqual(have, want) {
		t.Errorf("have %+v, want %+v", have, want)
	}
}

// Promise: A load balancer's report of slow start that makes no sense is of none.
func TestAStartThatIsNoneIsLeftOut(t *testing.T) {
	for what, s := range map[string]*ballastv1.ServerTraffic{
		"without an end": {SlowStartTenths: 3}, "past": {SlowStartTenths: 3, SlowStartLeft: durationpb.New(-time.Second)}, "whole": {SlowStartTenths: 10, SlowStartLeft: durationpb.New(time.Second)},
		"nothing": {SlowStartLeft: durationpb.New(time.Second)}, "for days": {SlowStartTenths: 3, SlowStartLeft: durationpb.New(50 * time.Hour)}, "too many": {SlowStartTenths: 1 << 31, SlowStartLeft: durationpb.New(time.Second)},
	} {
		if start := trafficFromProto(&ballastv1.TrafficReport{Servers: []*ballastv1.ServerTraffic{s}})[0].Start; start != (engine.Start{}) {
			t.Errorf("%s: %+v", what, start)
		}
	}
	s := &ballastv1.ServerTraffic{Service: "web", Id: 7, SlowStartTenths: 3, SlowStartLeft: durationpb.New(time.Minute)}
	start := trafficFromProto(&ballastv1.TrafficReport{Servers: []*ballastv1.ServerTraffic{s}})[0].Start
	if left := time.Until(start.Whole); start.Tenths != 3 || left > time.Minute || left <= 0 {
		t.Errorf("one is %+v", start)
	}
	shown := ServersToProto([]engine.ServerStatus{{}, {Start: start}})
	if shown[0].SlowStart != 0 || shown[0].WholeAt != nil || shown[1].SlowStart != 0.3 || !shown[1].WholeAt.AsTime().Equal(start.Whole) {
		t.Errorf("shown are %v", shown)
	}
}
