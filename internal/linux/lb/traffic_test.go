package lb

import (
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/machine/balance"
	"github.com/ballast-lb/ballast/internal/model"
)

// Two load balancers send as many packets to each server, of 1,052 bytes to the first and of 177 to the second.
func TestAWRRFollowsTheBytesOrPacketsThatWereSent(t *testing.T) {
	for source, shares := range map[model.LoadSource][]uint16{model.LoadPackets: {10, 10}, model.LoadBytes: {7, 16}} {
		s := policy(model.DispatchAWRR, 1, 1)
		s.Load.Source, s.Load.Interval = source, model.Duration(250*time.Millisecond)
		nodes, now := map[string]*world{"lb1": newWorld(t, s), "lb2": newWorld(t, s)}, time.Unix(0, 0)
		var decided balance.Service
		for range 3 {
			for name, w := range nodes {
				for id, traffic := range w.serverTraffic("web") {
					decided.Seen(now, name, id, balance.Seen{Connections: traffic.Connections, Packets: traffic.Packets, Bytes: traffic.Bytes})
				}
				for n := range 20 {
					id := uint16(1 + n%2)
					f := flowTo(vip4, 80, n)
					payload := make([]byte, 1000/int(id*id*id))
					w.checkVerdict(f.frame(f.tcp(psh|ack, timestamps(77, w.cookieFor("web", f, id, 1)), payload)), lbVerdictFORWARDED_BY_COOKIE)
				}
			}
			now = now.Add(time.Duration(s.Load.Interval))
		}
		var weights []uint16
		for _, share := range decided.Weigh(now, &s) {
			weights = append(weights, share.Weight)
		}
		w := nodes["lb1"]
		w.reweigh(weights...)
		round := int(weights[0] + weights[1])
		served := w.connect(round * 4)
		for i, share := range shares {
			if have := served[idAt(uint16(i+1))]; have != 4*int(share) {
				t.Errorf("by %s: server %d got %d of %d connections, want %d", source, i+1, have, round*4, 4*share)
			}
		}
	}
}
