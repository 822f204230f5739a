package doctor

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestTheWayToAPredecessorIsJudgedByWhatGoesThere(t *testing.T) {
	address := netip.MustParseAddr("10.0.0.5")
	for _, test := range []struct {
		name     string
		share    uint16
		path     pathFacts
		check    string
		severity Severity
		remedy   string
	}{
		{"on a link", 0, pathFacts{MTU: 1500, OnLink: true}, "predecessor", OK, ""},
		{"it does not answer", 500, pathFacts{Err: netdev.ErrUnresolved}, "predecessor", Problem, "bring it back"},
		{"no route", 0, pathFacts{Err: errors.New("no route")}, "predecessor", Problem, "ip route add 10.0.0.5"},
		{"it may be needed no more", model.ShareAll, pathFacts{Err: netdev.ErrUnresolved}, "predecessor", Warning, "ballast_predecessor_connections"},
		{"this host", 0, pathFacts{MTU: 1600, Here: true}, "predecessor", Problem, "name the host"},
		{"behind a router", 0, pathFacts{MTU: 1600}, "predecessor", Problem, "ipip or gue"},
		{"too narrow", 0, pathFacts{MTU: 1400, OnLink: true}, "mtu", Warning, "1500"},
	} {
		f := healthyFacts(RoleLB)
		f.File.Fleet.Services[0].Predecessor = model.Predecessor{Addresses: []netip.Addr{address}, Share: model.ShareOf(test.share)}
		f.Paths[address] = test.path
		if found := judgePredecessors(f); len(found) != 1 || found[0].Check != test.check || found[0].Severity != test.severity || !strings.Contains(found[0].Remedy, test.remedy) {
			t.Errorf("%s: %+v", test.name, found)
		}
	}
}
