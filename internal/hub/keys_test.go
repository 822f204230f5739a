package hub

import (
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

func says(epochs []uint32, current uint32, connections map[uint32]uint64) *ballastv1.FromNode {
	return &ballastv1.FromNode{Message: &ballastv1.FromNode_Keys{Keys: &ballastv1.KeyReport{Epochs: epochs, Current: current, Connections: connections}}}
}

func TestAReportOfKeysIsForAgentsAloneAndCutShort(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	lb := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1"))
	lb.Send(says([]uint32{1}, 1, nil))
	if why := lb.Ends(); !strings.Contains(why.Message(), "not lb") {
		t.Errorf("a load balancer's report of keys: %v", why)
	}
	many := map[uint32]uint64{}
	var epochs []uint32
	for i := range uint32(1000) {
		many[i], epochs = 1, append(epochs, i)
	}
	agent := fleettest.Join(t, address, ca.Issue(pki.Agent, "s1"))
	agent.Send(says(epochs, 1, many))
	fleettest.Await(t, "the report", func() bool {
		for _, n := range hub.Nodes.Keys().List {
			if n.Report != nil {
				return len(n.Report.Epochs) <= reportedEpochs && len(n.Report.Connections) <= reportedEpochs
			}
		}
		return false
	})
}
