package model

import (
	"fmt"
	"time"
)

// Duration is a time.Duration that is written like 250ms in files and in JSON.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the duration as time.Duration.String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return &Invalid{Problem: fmt.Sprintf("%q is not a duration", text), Remedy: "write it like 250ms, 2s or 1h30m"}
	}
	*d = Duration(parsed)
	return nil
}

// Load is how the load of a service's servers is measured, and what dispatch makes of it (awrr, awfd, lcf, p2c, least).
type Load struct {
	Source     LoadSource `json:"source"`
	Interval   Duration   `json:"interval"`           // between reports and between updates of weights; 10 ms to 10 s
	Classes    uint8      `json:"classes"`            // awfd: m, the number of priority classes; 0: all servers alike (ECMP)
	QueueLimit uint32     `json:"queue_limit"`        // Q of Spotlight V-B: requests that a server holds before it refuses
	Endpoint   string     `json:"endpoint,omitempty"` // source endpoint: URL; without a host: http://:8080/load is asked of each server
}

// LoadPeriod is how often an agent reports the load of a server, at least: in each interval where somebody decides by it, else as seldom as
// people need it.
func (s *Service) LoadPeriod(server *Server) time.Duration {
	if s.LoadDecides(server) {
		return time.Duration(s.Load.Interval)
	}
	return time.Duration(max(s.Load.Interval, IdleLoadInterval))
}

// LoadDecides reports whether something goes by what an agent says of a server: a policy, or who waits for the end of a drain.
func (s *Service) LoadDecides(server *Server) bool {
	return s.FollowsAgents() || server.State != StateActive
}

// FollowsAgents reports whether the policy goes by what agents measure: with source endpoint, where applications do not answer.
func (s *Service) FollowsAgents() bool { return s.FollowsLoad() && s.Load.Source.ByAgents() }

// FollowsLoad reports whether the policy goes by load that is measured in each interval.
func (s *Service) FollowsLoad() bool { return s.Dispatch.FollowsLoad() || s.ComparesReports() }

// ComparesReports reports whether load balancers compare loads that were reported: p2c and least with a source that they do not count.
func (s *Service) ComparesReports() bool {
	return s.Dispatch.ComparesLoads() && s.Load.Source != LoadConnections && s.Load.Source != LoadEstimate
}

// CountsOpen reports whether load balancers compare what servers have open, and so estimate it as well as they can.
func (s *Service) CountsOpen() bool { return s.Dispatch.ComparesLoads() && !s.ComparesReports() }

// Health is how the health of a service's servers is found out.
type Health struct {
	Check    Check    `json:"check"`
	Interval Duration `json:"interval"`           // between checks of one server by one load balancer, jittered by a tenth
	Timeout  Duration `json:"timeout"`            // of one check
	Rise     uint8    `json:"rise"`               // successes in a row until an unhealthy server is healthy
	Fall     uint8    `json:"fall"`               // failures in a row until a healthy server is unhealthy
	Port     uint16   `json:"port,omitempty"`     // 0: the service's own
	Path     string   `json:"path,omitempty"`     // http, https
	Host     string   `json:"host,omitempty"`     // http, https: Host header; https, tls, grpcs: also the name in the certificate, empty: not verified; grpc, grpcs: the authority
	Service  string   `json:"service,omitempty"`  // grpc, grpcs: service name, empty: the server as a whole
	Command  []string `json:"command,omitempty"`  // exec: program and arguments; exit status 0 is healthy
	Send     string   `json:"send,omitempty"`     // udp: the datagram, a text or hex:
	Expect   string   `json:"expect,omitempty"`   // udp: how the answer begins
	Contains string   `json:"contains,omitempty"` // udp: what is in the answer
	Query    string   `json:"query,omitempty"`    // dns: name and type
	RCode    string   `json:"rcode,omitempty"`    // dns: the response code expected
	AllDown  AllDown  `json:"all_down"`           // who gets new connections when nobody is healthy
	Deadline Duration `json:"deadline,omitempty"` // an unhealthy server's connections are cut after that long; 0: never
}

// Implementation constants: bounds and defaults of load reports and health checks.
const (
	MaxClasses      = 16  // of awfd
	DefaultClasses  = 4   // Spotlight VI: "values as small as 4 can already achieve good performance"
	ClassesUnset    = 255 // Load.Classes that was not given
	MinLoadInterval = Duration(10 * time.Millisecond)
	MaxLoadInterval = Duration(10 * time.Second)
	MinCheckTime    = Duration(10 * time.Millisecond)
	MaxCheckTime    = Duration(time.Hour)

	IdleLoadInterval = Duration(2 * time.Second) // between reports of load that only people read
)

func (l *Load) applyDefaults() {
	source := LoadConnections
	if l.Endpoint != "" {
		source = LoadEndpoint
	}
	setDefault(&l.Source, LoadUnset, source)
	setDefault(&l.Interval, 0, Duration(250*time.Millisecond))
	setDefault(&l.Classes, ClassesUnset, DefaultClasses)
	setDefault(&l.QueueLimit, 0, 128)
}

func (h *Health) applyDefaults() {
	setDefault(&h.Interval, 0, Duration(2*time.Second))
	setDefault(&h.Timeout, 0, min(Duration(time.Second), h.Interval))
	setDefault(&h.Rise, 0, 2)
	setDefault(&h.Fall, 0, 3)
	if h.Check == CheckHTTP || h.Check == CheckHTTPS {
		setDefault(&h.Path, "", "/")
	}
}
