package model

// Implementation constants: bounds of Service.SlowStart.
const (
	MinSlowStart = Duration(1e9)
	MaxSlowStart = Duration(3600e9)
)

func (s *Service) validateSlowStart(path string, found *findings) {
	switch {
	case s.SlowStart == 0:
		return
	case s.Dispatch.Placed():
		found.add(path, "remove it (ctl: --slow-start 0s), or use dispatch: rr, wrr, p2c, least, awrr, awfd or lcf",
			"%s places connections by a table that is the same on all load balancers: each step of a share would move connections that carry no cookie", s.Dispatch)
	case s.Dispatch == DispatchAWFD && s.Load.Classes == 0:
		found.add(path, "remove it, or use load.classes 1 to 16", "with load.classes 0 all servers are alike")
	}
	checkDuration(path, s.SlowStart, MinSlowStart, MaxSlowStart, found)
}
