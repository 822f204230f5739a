package papers

// Anolis.
var anolis = []Figure{
	{Paper: "Anolis", Name: "figure 1", Shows: "stateful network functions", Drawing: true},
	{Paper: "Anolis", Name: "figure 2", Shows: "inbound and outbound affinity", Drawing: true},
	{Paper: "Anolis", Name: "figure 3", Shows: "forwarding and replication", Drawing: true},
	{Paper: "Anolis", Name: "figure 4", Shows: "chains in a ring", Drawing: true},
	{Paper: "Anolis", Name: "figure 5", Shows: "common nodes", Drawing: true},
	{Paper: "Anolis", Name: "figure 6", Shows: "WriteIfNotExists", Drawing: true},
	{Paper: "Anolis", Name: "figure 7", Shows: "entries that reconfiguration makes wrong", Drawing: true},
	{Paper: "Anolis", Name: "figure 8", Shows: "states of the controller", Drawing: true},
	{Paper: "Anolis", Name: "figure 9", Shows: "ComputeSync", Drawing: true},
	{Paper: "Anolis", Name: "figure 10", Shows: "threads", Drawing: true},
	{Paper: "Anolis", Name: "section 4.4", Shows: "property 1", Simulated: []string{"anolis-property", "anolis-states"}},
	{Paper: "Anolis", Name: "figure 11", Shows: "latency and jitter by load, 10 packets per flow", Simulated: []string{"anolis-scaling/messages-2"},
		Measured: []Measurement{replicaLatency, {Shows: "p50 of a flow's first packet under load, 3 replicas to 1, and p99.9", Paper: "much higher near the most",
			Command: "bench replica", Quotes: []string{"the same under 1/4 to 3/4 load, 3 replicas to 1, flows of 10 packets | 1.6-2.1", replicaTail},
			Reason: replicaLoad}}},
	{Paper: "Anolis", Name: "figure 12", Shows: "latency and jitter by load, 100 packets per flow", Simulated: []string{"anolis-scaling/latency"},
		Measured: []Measurement{replicaLatency, {Shows: "p50 of a flow's first packet under load, 3 replicas to 1, and p99.9",
			Paper: "1.5 (mean, 60 to 90 us), p99.9 120 to 160 us", Command: "bench replica",
			Quotes: []string{"the same, flows of 100 packets | 1.2-1.4", replicaTail}, Reason: replicaLoad}}},
	{Paper: "Anolis", Name: "figure 13", Shows: "throughput by packets per flow", Simulated: []string{"anolis-scaling/ppf"},
		Measured: []Measurement{{Shows: "packets per CPU time, 80 packets per flow, against 5", Paper: "7 (packets a second)", Command: "bench replica",
			Quotes: []string{"packets per CPU time, flows of 80 packets to 5 | 1.7-2.2"},
			Reason: "known packets cost 1.5 to 1.9 us here, of which 0.1 in the load balancer: veth devices and the switch make up the rest, for each packet"}}},
	{Paper: "Anolis", Name: "figure 14", Shows: "throughput and connections by nodes", Simulated: []string{"anolis-scaling/linear-1", "anolis-scaling/linear-2",
		"anolis-scaling/linear-3", "anolis-scaling/lost-random", "anolis-scaling/connections"},
		Measured: []Measurement{{Shows: "load per packet handled, by nodes", Paper: "near-linear", Command: "bench replica",
			Quotes: []string{"load per packet handled, 3, 4, 5 and 6 nodes, against 2 | 0.97, 0.85, 0.79, 0.72"}, Reason: "all nodes on one CPU"}},
		Missing: "packets of 14 nodes: the machine has two cores, so throughput is simulated only"},
	{Paper: "Anolis", Name: "table 1", Shows: "connections while nodes fail and are added", Simulated: []string{"anolis-reconfigure"}, Scenarios: []string{"replicated"}},
}

var replicaLatency = Measurement{Shows: "p50 of a flow's first packet, with 1, 2 and 3 replicas", Paper: "15 us a replica", Command: "bench replica",
	Quotes: []string{"first packet, p50, with 1, 2 and 3 replicas | 4.3, 6.9 and 7.2 us"}, Reason: "one packet at a time"}

const (
	replicaTail = "p99.9 of both | 0.10-0.52 ms"
	replicaLoad = "four nodes, switch and sender on one CPU of a busy machine, whose other load makes the tails; loads are of what that CPU carries; no jitter"
)
