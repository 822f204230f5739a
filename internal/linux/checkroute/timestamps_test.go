package checkroute_test

import (
	"context"
	"errors"
	"testing"

	healthcheck "github.com/ballast-lb/ballast/internal/linux/check"
	"github.com/ballast-lb/ballast/internal/linux/checkroute"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
)

// Its kernel's timestamps are switched off while it works.
//
// Promise: When a server's `net.ipv4.tcp_timestamps` becomes 0, existing connections are kept, its agent is not
// ready, and it is unhealthy unless dispatch places by hash.
// Also held by TestAServerThatLosesItsTimestampsIsAProblemAndUnhealthyWhereItsConnectionsBreak.
func TestAServerWithoutTimestampsIsSeen(t *testing.T) {
	progtest.BothWays(t, serversWithoutTimestampsAreSeen)
}

func serversWithoutTimestampsAreSeen(t *testing.T) {
	n := newCheckNet(t)
	without := n.servers[0].server
	for _, test := range []struct {
		name           string
		lb, server     string // net.ipv4.tcp_timestamps
		placed         bool
		first, another healthcheck.Cookie
		err            error
	}{
		{"with them", "1", "1", false, healthcheck.CookieOwn, healthcheck.CookieOwn, nil},
		{"without", "1", "0", false, healthcheck.CookieMissing, healthcheck.CookieOwn, checkroute.ErrNoTimestamps},
		{"without, and new connections go by placement", "1", "0", true, healthcheck.CookieMissing, healthcheck.CookieOwn, nil},
		{"the load balancer offers none", "0", "0", false, healthcheck.CookieNotSeen, healthcheck.CookieNotSeen, nil},
		{"with them again", "1", "1", false, healthcheck.CookieOwn, healthcheck.CookieOwn, nil},
	} {
		progtest.Check(t, n.lb.Sysctl("net/ipv4/tcp_timestamps", test.lb))
		progtest.Check(t, without.Sysctl("net/ipv4/tcp_timestamps", test.server))
		for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP} {
			n.set(n.servers[0].vips[0], false, func(target *checkroute.Target) {
				target.Forward, target.Placed = forward, test.placed
				n.own(target, n.servers[0].fleet.Keys, func(server int) uint16 { return uint16(server + 1) })
			})
			for i, want := range []healthcheck.Cookie{test.first, test.another} {
				ctx, cancel := context.WithTimeout(t.Context(), progtest.Deadline)
				conn, remarks, err := n.dial(ctx, n.key(i), plainPort, nil)
				cancel()
				if conn != nil {
					conn.Close()
				}
				wrong := error(nil)
				if i == 0 {
					wrong = test.err
				}
				if remarks != (healthcheck.Remarks{Cookie: want}) || !errors.Is(err, wrong) {
					t.Errorf("%s, %s, %s: %+v, %v; want cookie %d, %v", test.name, forward, n.name(i), remarks, err, want, wrong)
				}
			}
		}
	}
}
