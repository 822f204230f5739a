package papers

// Yuz: Hosseini et al.
var yuz = []Figure{
	{Paper: "Yuz", Name: "figure 1", Shows: "load balancers of layer 4 and 7", Drawing: true},
	{Paper: "Yuz", Name: "figure 2", Shows: "handshake of TLS", Drawing: true},
	{Paper: "Yuz", Name: "figure 3", Shows: "how packets are handled", Drawing: true},
	{Paper: "Yuz", Name: "figure 4", Shows: "hand-off", Drawing: true},
	{Paper: "Yuz", Name: "figure 5", Shows: "test bed", Drawing: true},
	{Paper: "Yuz", Name: "figure 6", Shows: "CPU cycles of a packet", Measured: []Measurement{
		{Shows: "a connection's packets, to Cheetah's", Paper: "10 % more", Command: "bench datapath",
			Quotes: []string{"`session: tls` costs 2.0-2.8 times `cookie` in connections of 10 client packets, medians of 100 and 400: 1.1 and 1.0"},
			Reason: "how many packets the paper's connections have, it does not say"},
		{Shows: "hand-off of a connection", Paper: "135 us", Command: "run sessions", Quotes: []string{"to take over a connection | 7.9 us"},
			Reason: "the server's CPU alone, within the kernel"},
	}, Missing: "Prism is not published; nginx as a proxy is measured by requests, not by packets"},
	{Paper: "Yuz", Name: "figure 7", Shows: "most requests a second by requests of a session",
		Simulated: []string{"yuz-7/l4-falls", "yuz-7/yuz-flat", "yuz-7/yuz-l4", "yuz-7/l4-l7"}, Scenarios: []string{"session-benefit"},
		Measured: []Measurement{{Shows: "Yuz for L4, 1 to 50 requests of a session", Paper: "about twice at 20", Command: "run session-sweep",
			Quotes: []string{"requests/s, sessions of 1, 2, 5, 20, 50 requests | 1.1, 4.2, 6.6, 7.8, 8.5"}, Reason: sweepReason}}},
	{Paper: "Yuz", Name: "figure 8", Shows: "use of processors at most requests", Simulated: []string{"yuz-7/l7-busy", "yuz-7/yuz-busy"}},
	{Paper: "Yuz", Name: "figure 9", Shows: "mean response time by requests a second",
		Simulated: []string{"yuz-9/mean-l7", "yuz-9/mean-l7-l4", "yuz-9/mean-l4", "yuz-9/mean-stalls", "yuz-9/yuz-load"}, Scenarios: []string{"session-benefit"}},
	{Paper: "Yuz", Name: "figure 10", Shows: "p99 of response time by requests a second", Simulated: []string{"yuz-9/tail-l4", "yuz-9/tail-stalls"}, Scenarios: []string{"session-benefit"}},
	{Paper: "Yuz", Name: "figure 11", Shows: "most requests a second by the size of session data", Simulated: []string{"yuz-11"}, Scenarios: []string{"session-benefit"},
		Measured: []Measurement{{Shows: "Yuz for L4, L4 for L7, by the size of session data", Paper: "L4 falls behind L7 at 10 MB", Command: "run session-sweep",
			Quotes: []string{"states of 16, 128, 1024 KiB | 0.9, 1.9, 6.0; Redis to nginx 2.7, 1.3, 0.37"}, Reason: sweepReason}}},
	{Paper: "Yuz", Name: "figure 12", Shows: "evenness of the servers' load", Simulated: []string{"yuz-12"},
		Measured: []Measurement{{Shows: "coefficient of variation of servers' connections, Yuz to L4", Paper: "Yuz higher, not very unbalanced", Command: "run session-sweep",
			Quotes: []string{"variation of servers' connections | 1.5 to 1.2"}, Reason: "four servers instead of 48; 60 % of what they carry"}}},
}

const sweepReason = "four servers and Redis, of 0.15 and 0.1 CPUs: which sizes that database carries is its own"
