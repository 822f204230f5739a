package lb

import (
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/algo/history"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/linux/rowtest"
	"github.com/ballast-lb/ballast/internal/linux/verdict"
	"github.com/ballast-lb/ballast/internal/plan"
)

func TestRowsAreThoseOfTheProgram(t *testing.T) {
	rowtest.Same(t, plan.ServiceRow{}, lbService{})
	rowtest.Same(t, plan.ServerRow{}, lbServer{})
	rowtest.Same(t, history.Column{}, lbColumn{})
	rowtest.Same(t, plan.PortKey{}, lbVipKey{})
	rowtest.Same(t, plan.ReturnKey{}, lbReturnKey{})
	rowtest.Same(t, plan.AllowedKey{}, lbAllowedKey{})
	rowtest.Same(t, vipSlot{}, lbVipSlot{})
	rowtest.Same(t, connections.Entry{}, lbConnection{})
	rowtest.Same(t, conntable.Block{}, lbConnectionBlock{})
	rowtest.Same(t, connections.Address{}, lbConnectionAddress{})
	rowtest.Same(t, endedConnection{}, lbEndedConnection{})
	rowtest.Same(t, plan.SessionConfig{}, lbSessionConfig{})
	rowtest.Same(t, plan.ReplicaConfig{}, lbReplicaConfig{})
	rowtest.Same(t, replicaCurrent{}, lbReplicaCurrent{})
	rowtest.Same(t, replicaView{}, lbReplicaView{})
	rowtest.Same(t, replicas.Bucket{}, lbReplicaBucket{})
}

func TestTheStatesOfConnectionsAreThoseOfTheDataPath(t *testing.T) {
	spec, err := loadLb()
	if err != nil {
		t.Fatal(err)
	}
	names, err := verdict.Names(spec.Types, "connection_state")
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		if want := strings.TrimPrefix(name, "connection_"); len(names) != len(conntable.States) || conntable.State(i).String() != want {
			t.Errorf("state %d is %s here and %s there", i, conntable.State(i), want)
		}
	}
}
