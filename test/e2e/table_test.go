package e2e

import "testing"

// Promise: With affinity table, load balancers list exactly the connections that servers have; entries are free
// again after FIN, RST and silence; floods take nothing from real connections, a limit stops the connection that
// exceeds it and no other, and a suspect's packets visit the scrubber; whatever happens to entries, no connection
// breaks.
// Promise: With `affinity: table`, connections are kept when a load balancer is killed or its packets go to
// another; entries and statistics are made again.
// Promise: A FIN, an RST or silence for `idle_timeout` frees a table entry; a silent connection goes on and gets
// another.
// Promise: A SYN flood takes no entry of a connection table.
// Promise: Forged cookies, repeated packets, foreign FINs and a full table break no connection and are counted;
// connections may lack entries until 10 s after the flood.
// Promise: Packets of a connection beyond `packet_limit` are dropped, at each load balancer.
// Promise: A suspect's packets go to the scrubber, and nobody else's do.
func TestTablesKnowTheConnectionsAndNoneDependsOnThem(t *testing.T) {
	result := run(t, "table")
	logMeasured(t, result)
	if len(result.Trials) != 3 || result.Broken != 0 || result.Completed != result.Attempted {
		t.Errorf("%d of %d broken: %v", result.Broken, result.Attempted, result.BrokenBy)
	}
	timestampsAccepted(t, result.Trials[0])
	timestampsAccepted(t, result.Trials[2]) // floods repeat packets of real clients, whose timestamps are old
}
