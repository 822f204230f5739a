package bench

import (
	"net/netip"

	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/model"
)

// Services whose connections not everybody may begin, or not at any rate.
var (
	allowVIP   = netip.MustParseAddr("198.51.100.19")
	refusedVIP = netip.MustParseAddr("198.51.100.20") // refuses all that is measured
	limitVIP   = netip.MustParseAddr("198.51.100.21")
	proxyVIP   = netip.MustParseAddr("198.51.100.22")
)

// guardedServices have a full list each; the limit is the highest that there is, so that none of the measured SYNs exceeds it.
func guardedServices() []model.Service {
	allow, refused, limit, proxy := newService(allowVIP, model.DispatchRR), newService(refusedVIP, model.DispatchRR), newService(limitVIP, model.DispatchRR),
		newService(proxyVIP, model.DispatchRR)
	for i := range model.MaxAllowed {
		refused.Allow = append(refused.Allow, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), 0}), 24))
	}
	allow.Allow = append(refused.Allow[1:len(refused.Allow):len(refused.Allow)], allClients)
	limit.SourceLimit = model.SourceLimit{Rate: model.MaxSourceRate, Burst: model.MaxSourceRate * model.MaxSourceBurstTime}
	proxy.SYNProxy = model.SYNProxyAlways
	return []model.Service{allow, refused, limit, proxy}
}

// guardedSubjects are SYNs that a list or a bucket lets pass; what begins a connection with syn_proxy, each of another one; and packets of connections
// that have begun.
func (r *rig) guardedSubjects() []subject {
	of := func(name, verdict string, vip netip.Addr, cell wrapper.Cell, check func([]byte, sent) error) subject {
		return subject{name: name, program: r.lb.Program(), cell: cell, verdict: verdict, place: r.places[vip.String()], check: check}
	}
	syn := func(name string, vip netip.Addr) subject {
		return of(name, "forwarded_new", vip, plainCell(vip, segmentSYN), checkAnyServer)
	}
	established := func(name string, vip netip.Addr) subject {
		return of(name, "forwarded_by_cookie", vip, carryingCell(&r.fleet, vip, segmentACK), checkCookie)
	}
	first := of("syn-proxy-first", "forwarded_new", proxyVIP, carryingCell(&r.fleet, proxyVIP, segmentACK), checkCookie)
	first.cell.Answered = r.answers(proxyVIP)
	first.fresh, first.prepare = &r.begun, asOfNow(first.cell.Answered)
	return []subject{syn("allow-syn", allowVIP), established("allow-cookie", allowVIP), syn("source-limit-syn", limitVIP), established("source-limit-cookie", limitVIP),
		r.answeredSYN("syn-proxy-syn", proxyVIP), first, established("syn-proxy-cookie", proxyVIP)}
}

// refused is a SYN of a client that is not on the list.
func (r *rig) refused() subject {
	return subject{name: "allow-refused", program: r.lb.Program(), lb: r.lb, cell: plainCell(refusedVIP, segmentSYN), keeps: true, action: xdpDrop, verdict: "dropped_not_allowed",
		place: r.places[refusedVIP.String()], check: checkUnchanged}
}
