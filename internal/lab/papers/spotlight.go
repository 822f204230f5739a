package papers

// Spotlight: Aghdai et al.
var spotlight = []Figure{
	{Paper: "Spotlight", Name: "table I", Shows: "notation", Drawing: true},
	{Paper: "Spotlight", Name: "figure 1", Shows: "dedicated load balancing", Drawing: true},
	{Paper: "Spotlight", Name: "figure 2", Shows: "load balancing at the source", Drawing: true},
	{Paper: "Spotlight", Name: "figure 3", Shows: "example of two elephants", Simulated: []string{"spotlight-example"}},
	{Paper: "Spotlight", Name: "figure 4", Shows: "AWFD", Drawing: true},
	{Paper: "Spotlight", Name: "figure 5", Shows: "AWFD's tables", Drawing: true},
	{Paper: "Spotlight", Name: "figure 6", Shows: "data plane", Drawing: true},
	{Paper: "Spotlight", Name: "figure 7", Shows: "control plane", Drawing: true},
	{Paper: "Spotlight", Name: "table II", Shows: "traffic of figures 8 to 10", Drawing: true},
	{Paper: "Spotlight", Name: "figure 8", Shows: "utilisation by polling interval, synthesized trace", Simulated: []string{"spotlight-8"}},
	{Paper: "Spotlight", Name: "figure 9", Shows: "utilisation by polling interval, MAWI's trace", Simulated: []string{"spotlight-9"}},
	{Paper: "Spotlight", Name: "figure 10", Shows: "utilisation by the largest weight", Simulated: []string{"spotlight-10"}},
	{Paper: "Spotlight", Name: "figure 11", Shows: "test bed", Drawing: true},
	{Paper: "Spotlight", Name: "figure 12", Shows: "throughput by policy", Simulated: []string{"spotlight-12"}, Scenarios: []string{"uneven", "uneven-links"}},
	{Paper: "Spotlight", Name: "figure 13", Shows: "completion time by polling interval", Simulated: []string{"spotlight-13"}},
	{Paper: "Spotlight", Name: "figure 14", Shows: "throughput by lost updates", Simulated: []string{"spotlight-14"}, Scenarios: []string{"weight-loss"}},
	{Paper: "Spotlight", Name: "section VI-B3", Shows: "control traffic", Simulated: []string{"spotlight-control"}},
}
