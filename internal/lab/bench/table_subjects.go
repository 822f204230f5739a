package bench

// subjects lists the rows at one number of flows; the first is the control of rows that are fed the same frames.
func (r *tableRig) subjects(size *tableSize) []subject {
	floor := subject{name: "minimal-ipip", program: r.programs.MinimalIPIP(), cell: plainCell(cookieVIP, segmentACK), check: checkMinimal}
	floor.cell.Growth = outerLength
	all := []subject{
		{name: "empty", program: r.programs.Empty(), cell: plainCell(cookieVIP, segmentACK), check: checkUnchanged},
		floor, r.stateless("cookie", segmentACK), r.established(size, "table", segmentACK), r.established(size, "table-at-once", segmentACK),
	}
	all[3].prepare = func() error { return r.lb.DeferCounts(true) }
	all[4].prepare = func() error { return r.lb.DeferCounts(false) }
	for _, local := range size.local {
		if !local.full {
			all = append(all, local.segment("local-"+local.name, segmentACK, "forwarded_by_local_table"))
		}
	}
	if size.flows < MinChangedFlows {
		return all
	}
	all = append(all, r.stateless("syn", segmentSYN))
	all = append(all, r.tableChanges(size)...)
	for _, local := range size.local {
		all = append(all, r.localChanges(size, local)...)
	}
	return all
}

// stateless are segments of a service that keeps nothing.
func (r *tableRig) stateless(name string, kind kind) subject {
	s := subject{name: name, program: r.lb.Program(), lb: r.lb, place: r.plain, verdict: "forwarded_by_cookie", check: checkCookie}
	s.cell = carryingCell(&r.fleet, cookieVIP, kind)
	s.cell.Growth = outerLength
	if kind == segmentSYN {
		s.cell.CookieBits, s.verdict, s.check = 0, "forwarded_new", checkAnyServer
	}
	return s
}

// established are segments of connections that have entries.
func (r *tableRig) established(size *tableSize, name string, kind kind) subject {
	s := r.stateful(name, size.established, kind)
	s.verdict, s.check = "forwarded_by_table", checkCookie
	s.cell.IndexShift, s.indices = size.established.idBits, size.indices
	return s
}

// stateful are segments of a service with a table, whose cookies carry no index.
func (r *tableRig) stateful(name string, t *connTable, kind kind) subject {
	s := subject{name: name, program: r.lb.Program(), lb: r.lb, place: t.place, cell: carryingCell(&r.fleet, t.vip, kind)}
	s.cell.Growth = outerLength
	return s
}

// segment are segments to a load balancer with a local table.
func (t *localTable) segment(name string, kind kind, verdict string) subject {
	s := subject{name: name, program: t.Program(), lb: t.LB, place: t.place, verdict: verdict, check: checkAnyServer}
	s.cell = plainCell(cookieVIP, kind)
	s.cell.Growth = outerLength
	return s
}
