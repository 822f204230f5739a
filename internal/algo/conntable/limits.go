package conntable

import "time"

// Limits say when an entry is freed: after so long without a packet. 0: at once.
type Limits struct {
	Ended time.Duration // FIN or RST was seen
	New   time.Duration // its server has not used the index yet
	Idle  time.Duration // all others
}

// Implementation constants: an entry that may be taken all the same is kept for packets that come late, a new one until the server's
// answer to it has surely come. A sweeper has gone through a table after a round.
const (
	EndedLinger = 5 * time.Second
	NewLinger   = 10 * time.Second
	SweepRound  = 10 * time.Second
)

// LimitsOf returns those of a service by its idle timeout.
func LimitsOf(idle time.Duration) Limits {
	return Limits{Ended: EndedLinger, New: NewLinger, Idle: idle}
}

// Of returns how long an entry in a state is kept.
func (l *Limits) Of(state State) time.Duration {
	return [states]time.Duration{StateNew: l.New, StateOpen: l.Idle, StateFinished: l.Ended, StateReset: l.Ended}[state]
}
