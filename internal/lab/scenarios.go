// All scenarios, as `ballast lab list` shows them.
package lab

import "time"

var scenarios = []Scenario{
	{"bimodal", "one request in ten is slow: p2c and policies that follow load beat hash", 4 * time.Minute, 50, runBimodal},
	{"churn", "servers and load balancers come and go, the key rotates: no connection breaks", 4 * time.Minute, 0, runChurn},
	{"controller-loss", "controllers, etcd members and the way to them are lost: no connection breaks, no server is stale", 5 * time.Minute, 0, runControllerLoss},
	{"drain", "an operator waits for the connections of drained servers; only a deadline cuts some, and ids rest", 3 * time.Minute, 0, runDrain},
	{"elastic", "the pool follows the load up and down: cookies break nothing, hash, Maglev and second chance in falling order", 4 * time.Minute, 0, runElastic},
	{"forwards", "l2, ipip in all four combinations of v4 and v6, and gue carry HTTP both ways", 3 * time.Minute, 0, runForwards},
	{"fragments", "datagrams larger than the MTU reach one server whole and are answered", time.Minute, 0, runFragments},
	{"health", "unhealthy servers get nothing new and keep what they have, until they are healthy or the deadline cuts them", 3 * time.Minute, 0, runHealth},
	{"idle", "connections that were silent for long go on after the pool has changed", 3 * time.Minute, 0, runIdle},
	{"ipv6", "churn over IPv6: no connection breaks", 3 * time.Minute, 0, runIPv6},
	{"no-timestamps", "clients without TCP timestamps keep their servers by second chance", 4 * time.Minute, 0, runNoTimestamps},
	{"pmtu", "uploads and downloads complete across a smaller MTU on either side", 3 * time.Minute, 0, runPMTU},
	{"return-through", "answers by the LB: another one takes over in mid-connection", 4 * time.Minute, 0, runReturnThrough},
	{"rotation", "operators rotate the key: it waits for silent clients and lost agents, and breaks nothing unless forced", 3 * time.Minute, 0, runRotation},
	{"syn-loss", "handshakes with lost SYNs and SYN-ACKs complete", 4 * time.Minute, 0, runSYNLoss},
	{"syncookies", "servers that answer every SYN with a SYN cookie keep their connections", 2 * time.Minute, 0, runSYNCookies},
	{"table", "tables hold exactly the open connections; floods, limits, scrubbing and lost load balancers: no connection breaks", 4 * time.Minute, 0, runTable},
	{"throughput", "wrk and iperf3 work; what cookies cost is reported, not judged", 3 * time.Minute, 0, runThroughput},
	{"two-tier", "servers and load balancers of two tiers come and go, one that keeps tables dies: no connection breaks", 4 * time.Minute, 0, runTwoTier},
	{"uneven", "servers of unequal CPU: p2c and policies that follow load beat hash", 4 * time.Minute, 200, runUneven},
	{"uneven-links", "servers of unequal bandwidth: p2c and policies that follow load beat hash", 4 * time.Minute, 200, runUnevenLinks},
	{"upgrade", "every process is stopped, killed and replaced under load: no connection breaks", 3 * time.Minute, 0, runUpgrade},
	{"weight-loss", "a fifth of the updates of weights lost at each load balancer costs little throughput", 4 * time.Minute, 60, runWeightLoss},
	{"wrap", "bulk transfers cross the wrap of the cookie's clock", 3 * time.Minute, 0, runWrap},
}
