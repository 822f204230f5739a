package spotlight

import (
	"cmp"
	"math"
	"slices"
)

// host is a server that divides its rate evenly among its requests (processor sharing), as a link does among TCP flows and a CPU among
// processes. It is exact between events; ends are rounded up to whole nanoseconds. Conversions of products keep compilers from fusing them
// with sums, which would round otherwise on other machines.
type host struct {
	rate     float64 // bytes/ns
	overhead float64 // n requests leave 1/(1 + n*overhead) of the rate
	open     []request
	lastNS   int64   // all below is as of then
	each     float64 // bytes that a request has got that has been here since the host was last idle
	queue    float64 // requests * ns, since it was last told
	served   float64 // bytes, since the beginning
	dueNS    int64   // when the first request ends unless another comes before
}

// request is one of a host's. The one that ends first is the last.
type request struct {
	endsAt  float64 // value of each
	startNS int64
}

const never = math.MaxInt64

func newHost(rate, overhead float64) host { return host{rate: rate, overhead: overhead, dueNS: never} }

// speed is what the host does now, in bytes/ns.
func (h *host) speed() float64 { return h.rate / (1 + float64(h.overhead*float64(len(h.open)))) }

// advance brings a host to a time at which, or before which, nothing is due.
func (h *host) advance(nowNS int64) {
	elapsed := float64(nowNS - h.lastNS)
	h.lastNS = nowNS
	if n := float64(len(h.open)); n > 0 {
		h.each += float64(h.speed() / n * elapsed)
		h.queue += float64(n * elapsed)
		h.served += float64(h.speed() * elapsed)
	}
}

// begin gives a request to the host.
func (h *host) begin(nowNS int64, bytes float64) {
	h.advance(nowNS)
	r := request{endsAt: h.each + bytes, startNS: nowNS}
	at, _ := slices.BinarySearchFunc(h.open, r, func(a, b request) int { return cmp.Compare(b.endsAt, a.endsAt) })
	h.open = slices.Insert(h.open, at, r)
	h.plan()
}

// end ends the request that is due, and returns how long it was there.
func (h *host) end() (tookNS int64) {
	now, last := h.dueNS, len(h.open)-1
	h.advance(now)
	ended := h.open[last]
	h.open, h.each = h.open[:last], max(h.each, ended.endsAt)
	h.plan()
	return now - ended.startNS
}

func (h *host) plan() {
	if len(h.open) == 0 {
		h.dueNS, h.each = never, 0
		return
	}
	left := max(h.open[len(h.open)-1].endsAt-h.each, 0)
	h.dueNS = h.lastNS + int64(math.Ceil(left*float64(len(h.open))/h.speed()))
}

// tell returns the mean number of requests in the last periodNS, those since it was last asked.
func (h *host) tell(nowNS, periodNS int64) (mean float64) {
	h.advance(nowNS)
	mean = h.queue / float64(max(periodNS, 1))
	h.queue = 0
	return mean
}
