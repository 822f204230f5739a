package papers

const netFPGA = "hardware: a P4 program on a NetFPGA"

// SHELL: Pit-Claudel et al., ICNP 2018.
var shell = []Figure{
	{Paper: "SHELL", Name: "figure 1", Shows: "overview", Drawing: true},
	{Paper: "SHELL", Name: "table I", Shows: "example of an entry of the history", Drawing: true},
	{Paper: "SHELL", Name: "figure 2", Shows: "the P4 program", Drawing: true},
	{Paper: "SHELL", Name: "figure 3", Shows: "example of parsing options", Drawing: true},
	{Paper: "SHELL", Name: "figure 4", Shows: "latency of a burst", Missing: netFPGA},
	{Paper: "SHELL", Name: "figure 5", Shows: "latency by the length of the TCP header", Measured: []Measurement{
		{Shows: "longest header to shortest", Paper: "1.8 to 2.1 us", Command: "bench datapath",
			Quotes: []string{"options, timestamp first | 31-38", "options, slow walk | 158-190"}, Reason: "ns of the load balancer's CPU instead of a NetFPGA's latency"},
	}},
	{Paper: "SHELL", Name: "table II", Shows: "throughput and latency: 60 Mpps", Missing: netFPGA},
	{Paper: "SHELL", Name: "table III", Shows: "resources", Missing: netFPGA},
	{Paper: "SHELL", Name: "figure 6", Shows: "connections reset by changes of the servers, by depth of the history",
		Simulated: []string{"shell-6", "shell-6-realistic"}, Scenarios: []string{"shell", "shell-resets"},
		Missing: "the paper's 500 servers and 35591 buckets on packets: 20 servers and 251 buckets are, and equal the simulator's of that size"},
	{Paper: "SHELL", Name: "figure 7", Shows: "connections reset by changes of the servers, by buckets", Simulated: []string{"shell-7"}},
}
