package flows

// balance follows the imbalance of the active servers through time: max/mean - 1 of their connections. One change of a load costs O(1).
type balance struct {
	follow  bool // else only who is active is known
	active  []bool
	servers int     // active
	sum     int64   // of their loads
	most    int32   // largest of their loads
	having  []int32 // by load: active servers that have it

	since    int64   // ns, of the present loads
	integral float64 // of the imbalance over time, ns
	start    int64   // ns, of the integral
}

func (b *balance) add() { b.active = append(b.active, false) }

// set makes a server count, or not.
func (b *balance) set(server uint32, active bool, load int32, now int64) {
	if b.active[server] == active {
		return
	}
	b.until(now)
	b.active[server] = active
	if !b.follow {
		return
	}
	if active {
		b.servers++
		b.sum += int64(load)
		b.enter(load)
	} else {
		b.servers--
		b.sum -= int64(load)
		b.leave(load)
	}
}

// change moves a server from one load to another.
func (b *balance) change(server uint32, from, to int32, now int64) {
	if !b.follow || !b.active[server] {
		return
	}
	b.until(now)
	b.sum += int64(to - from)
	b.enter(to)
	b.leave(from)
}

func (b *balance) enter(load int32) {
	for int(load) >= len(b.having) {
		b.having = append(b.having, 0)
	}
	b.having[load]++
	b.most = max(b.most, load)
}

func (b *balance) leave(load int32) {
	b.having[load]--
	for b.most > 0 && b.having[b.most] == 0 {
		b.most--
	}
}

// until adds the time up to now.
func (b *balance) until(now int64) {
	if b.sum > 0 && now > b.since {
		b.integral += float64(now-b.since) * (float64(b.most)*float64(b.servers)/float64(b.sum) - 1)
	}
	b.since = now
}

func (b *balance) reset(now int64) { b.since, b.start, b.integral = now, now, 0 }

// mean returns the time average since the last reset; 0 when no time has passed.
func (b *balance) mean(now int64) float64 {
	b.until(now)
	if now == b.start {
		return 0
	}
	return b.integral / float64(now-b.start)
}
