package hub

import (
	"reflect"
	"testing"

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
