package queueing

// sum is what a server has done until now.
func (w *World) sum(server int) totals {
	return totals{busyNS: w.busyNS(server), waitNS: w.stations[server].waitNS, at: w.now}
}

// busy is the part of the time since another sum that a server's cores worked, on average.
func (w *World) busy(server int, now, then totals) float64 {
	return float64(now.busyNS-then.busyNS) / float64(max(now.at-then.at, 1)*w.stations[server].cores)
}

// Tell returns how busy a server's cores were, 0 to 1, and how many requests it had, on average since it last told.
func (w *World) Tell(server int) (busy, open float64) {
	then, now := w.reported[server], w.sum(server)
	w.reported[server] = now
	return w.busy(server, now, then), (now.waitNS - then.waitNS) / float64(max(now.at-then.at, 1))
}

// close ends a window: it adds the mean and the variance of how busy those servers were in it that were there for all of it. Of one that came
// just before the end nothing would be known but that it was new. Where nobody was there for all of it, the window does not count.
func (w *World) close() {
	sum, squares, n := 0.0, 0.0, 0.0
	for server, then := range w.windows.past {
		now := w.sum(server)
		part := w.busy(server, now, then)
		w.windows.past[server] = now
		if !w.windows.away[server] && then.at <= w.now-windowNS {
			sum, squares, n = sum+part, squares+float64(part*part), n+1
		}
	}
	if n == 0 {
		return
	}
	mean := sum / n
	w.windows.mean += mean
	w.windows.variance += squares/n - float64(mean*mean) // the conversion keeps processors from rounding once instead of twice
	w.windows.count++
}

// Open returns how many requests there are.
func (w *World) Open() int { return w.live }

// Arrived returns how many requests have come that count.
func (w *World) Arrived() int64 { return int64(uint64(len(w.born)) - w.first) }

// Broken returns how many of them were cut off.
func (w *World) Broken() int64 { return w.broken }

// Times returns how long the requests took that have ended and count, ns, in the order in which they ended; after Finish the shortest first.
func (w *World) Times() []int64 { return w.times }

// Busy is the part of the time that a core works, the mean over windows of a second and servers that were active all the while. It is 0 where
// no window counts.
func (w *World) Busy() float64 { return w.windows.mean / max(w.windows.count, 1) }

// Variance is that between such servers of the part of a window that their cores work, the mean over windows. It is 0 where no window counts.
func (w *World) Variance() float64 { return w.windows.variance / max(w.windows.count, 1) }

// Quantile returns the time in seconds that a part of sorted times does not exceed. There must be some.
func Quantile(times []int64, part float64) float64 {
	return float64(times[min(int(part*float64(len(times))), len(times)-1)]) / float64(second)
}

// Mean returns the mean of times, in seconds. There must be some.
func Mean(times []int64) float64 {
	sum := 0.0
	for _, t := range times {
		sum += float64(t)
	}
	return sum / float64(len(times)) / float64(second)
}
