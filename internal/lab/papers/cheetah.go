package papers

// Cheetah: Barbette et al., journal version.
var cheetah = []Figure{
	{Paper: "Cheetah", Name: "figure 1", Shows: "architecture of load balancing in a data centre", Drawing: true},
	{Paper: "Cheetah", Name: "figure 2a", Shows: "broken connections by updates of the servers", Simulated: []string{"cheetah-2a"}},
	{Paper: "Cheetah", Name: "figure 2b", Shows: "imbalance of the servers", Simulated: []string{"cheetah-2b"}},
	{Paper: "Cheetah", Name: "figure 2c", Shows: "broken connections when Beamer rebalances", Simulated: []string{"cheetah-2c"}},
	{Paper: "Cheetah", Name: "figure 3", Shows: "stateless operation", Drawing: true},
	{Paper: "Cheetah", Name: "figure 4", Shows: "stateful operation", Drawing: true},
	{Paper: "Cheetah", Name: "table I", Shows: "shares of the orders of TCP options", Measured: []Measurement{
		{Shows: "time of an order that is compared at once, and of one that is walked", Command: "bench datapath",
			Quotes: []string{"options, timestamp first | 37-45", "options, slow walk | 122-199"}, Reason: "ns"},
	}, Missing: "the shares are those of a campus' traffic"},
	{Paper: "Cheetah", Name: "table II", Shows: "granularity of the timestamps of web sites",
		Missing: "a survey; the cookie leaves servers a clock of 1 ms"},
	{Paper: "Cheetah", Name: "figure 5", Shows: "CPU cycles of a packet", Measured: []Measurement{
		{Shows: "stateful load balancer to stateless", Paper: "5x", Command: "bench table", Quotes: []string{"local-hash | 598", "cookie | 128"},
			Reason: "4.7x, in ns; both with the benchmark's wrapper"},
		{Shows: "hash table to stateful Cheetah", Paper: "2x to 3x", Command: "bench table", Quotes: []string{"local-hash | 598", "table | 218"},
			Reason: "2.7x, in ns; both with the benchmark's wrapper"},
		{Shows: "hash by hardware to stateless", Paper: "almost the same", Command: "bench datapath", Quotes: []string{"cookie | 21.4", "hash | 23.2"},
			Reason: "ns; the hash is software's"},
		{Shows: "Beamer", Paper: "more than both of Cheetah's", Command: "bench datapath", Quotes: []string{"hash-stop (GUE, earlier owner) | 214-269"},
			Reason: "ns; a packet with a second chance, in GUE"},
		{Shows: "timestamp corrected at the load balancer", Paper: "30 cycles more", Command: "bench datapath", Quotes: []string{"through-in | 108-122"},
			Reason: "ns; it restores the timestamp exactly, from the server's clock"},
	}},
	{Paper: "Cheetah", Name: "figure 6", Shows: "p99 of completion time by load", Simulated: []string{"cheetah-6"}, Scenarios: []string{"even"}},
	{Paper: "Cheetah", Name: "figure 7", Shows: "variance of the servers' load", Simulated: []string{"cheetah-7"}, Scenarios: []string{"even"}},
	{Paper: "Cheetah", Name: "figure 8", Shows: "p99 of completion time of bimodal work, by policy", Simulated: []string{"cheetah-8"}, Scenarios: []string{"bimodal"}},
	{Paper: "Cheetah", Name: "figure 9", Shows: "broken requests while the number of servers changes", Simulated: []string{"cheetah-9"}, Scenarios: []string{"elastic"}},
	{Paper: "Cheetah", Name: "figure 10", Shows: "tail latency of QUIC, hash to round robin", Value: "4x", Scenarios: []string{"quic-tail"}},
	{Paper: "Cheetah", Name: "figure 11", Shows: "throughput of QUIC, round robin over hash", Value: "8 %", Scenarios: []string{"quic-full"}},
}
