package probes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// host is a data path whose probes end as is set, and a clock.
type host struct {
	fates   map[uint16]server.Fate // by the service's port
	refuses error
	silent  map[netip.Addr]bool // neighbours that do not answer
	to      netip.AddrPort      // where connection tracking has datagrams go on to
	through map[uint16]bool     // the services' ports whose datagrams alone go there; nil: all
	busy    func(uint16) bool   // a client's ports that have flows of its own
	blind   error               // it cannot be asked
	sent    []server.Probe
	ended   []server.Probe
	now     time.Time
	*Probes
}

func (h *host) SendProbe(p *server.Probe) error {
	if h.refuses == nil {
		h.sent = append(h.sent, *p)
	}
	return h.refuses
}

func (h *host) EndProbe(p *server.Probe) error {
	h.ended = append(h.ended, *p)
	return nil
}

func (h *host) ProbeFate(p *server.Probe) (server.Fate, error) {
	return h.fates[p.Service.Port()], nil
}

var (
	vip, vip6 = netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("2001:db8:51::10")
	balancer  = netip.MustParseAddr("10.9.0.1")
	foreign   = netip.MustParseAddr("10.244.0.1") // behind another device
)

func newHost() *host {
	h := &host{fates: map[uint16]server.Fate{}, silent: map[netip.Addr]bool{}, now: time.Unix(1e9, 0)}
	h.busy = func(uint16) bool { return false }
	h.Probes = New(h, h.tracked, func(address netip.Addr) (*net.Interface, error) {
		if h.silent[address] {
			return nil, errors.New("neighbour not resolved yet")
		}
		if address == foreign {
			return &net.Interface{Index: 2, Name: "cni0"}, nil
		}
		return &net.Interface{Index: 1, Name: "eth0"}, nil
	})
	return h
}

func (h *host) tracked(client, service netip.AddrPort) (to netip.AddrPort, err error) {
	sent := slices.ContainsFunc(h.sent, func(p server.Probe) bool { return p.Client == client && p.Service == service })
	if h.busy(client.Port()) || sent && (h.through == nil || h.through[service.Port()]) {
		to = h.to
	}
	return to, h.blind
}

// look lets seconds pass.
func (h *host) look(seconds int) {
	for range seconds {
		h.now = h.now.Add(time.Second)
		h.Look(h.now, func(device *net.Interface) bool { return device.Name == "eth0" }, []netip.Addr{balancer})
	}
}

// says checks what is said of a service's first VIP, by parts of texts: why its packets are lost, what keeps the agent from being ready, and
// what else is a problem. Empty: nothing.
func (h *host) says(t *testing.T, when string, s *model.Service, lost, obstacle, problem string) {
	t.Helper()
	found, problems := h.Obstacles(h.now)
	for what, texts := range map[string][2]string{
		"lost": {h.Lost(s, s.VIP, h.now), lost}, "obstacle": {strings.Join(found, "\n"), obstacle}, "problem": {strings.Join(problems, "\n"), problem},
	} {
		if (texts[0] == "") != (texts[1] == "") || !strings.Contains(texts[0], texts[1]) {
			t.Errorf("%s: %s is %q, not %q", when, what, texts[0], texts[1])
		}
	}
}

func service(ports ...uint16) *model.Service {
	return &model.Service{Name: "web", VIP: vip, Protocol: model.ProtocolTCP, Ports: ports}
}

func of(services ...*model.Service) (list []plan.AgentService) {
	for _, s := range services {
		list = append(list, plan.AgentService{Service: s})
	}
	return list
}

const notAddress = "198.51.100.10 is not an address of this host: ip address add 198.51.100.10/32 dev lo"

func TestNothingIsKnownBeforeAProbe(t *testing.T) {
	h, s := newHost(), service(80)
	h.Set(of(s), nil, "")
	h.says(t, "with the address", s, "", "", "")
	if h.look(2); len(h.sent) != 0 {
		t.Error("a port of an address that the host has is probed")
	}
	h.Set(of(s), []netip.Addr{vip}, "")
	h.says(t, "nothing translates", s, notAddress, notAddress, "")
	h.Set(of(s), []netip.Addr{vip}, "chain c")
	h.says(t, "something may", s, "", "tcp port 80 are taken here is not known: no probe has shown it yet", "")
	udp := service(53)
	udp.Protocol = model.ProtocolUDP
	h.Set(of(udp), []netip.Addr{vip}, "")
	h.says(t, "UDP, nothing translates", udp, notAddress, notAddress, "")
	h.Set(of(udp), []netip.Addr{vip}, "chain c")
	h.says(t, "UDP", udp, "", "whether packets to its udp port 53 are taken here is not known: no probe has shown it yet", "")
}

// Promise: An agent is ready for a UDP service at a VIP that its host does not have where an application answers, or connection tracking has seen datagrams go on to another
// address; where ICMP or the way back to the network says that they are lost it is not ready; where nothing is seen of them it says which.
func TestWhatBecomesOfDatagramsCounts(t *testing.T) {
	pod, own := netip.MustParseAddrPort("10.244.1.7:5353"), netip.AddrPortFrom(vip, 53)
	for name, test := range map[string]struct {
		fate           server.Fate
		to             netip.AddrPort
		blind          error
		state          api.ProbeState
		lost, obstacle string
		problem        string
	}{
		"answered":                         {fate: server.ProbeAnswered, state: api.ProbeTaken},
		"passed on":                        {to: pod, state: api.ProbePassed},
		"no listener in a pod":             {fate: server.ProbeRefused, state: api.ProbeRefused},
		"no listener here, passed on":      {fate: server.ProbeRejected, to: pod, state: api.ProbeRefused},
		"a rule refuses":                   {fate: server.ProbeRejected, state: api.ProbeLost, obstacle: "refuses them by ICMP"},
		"passed on to a host that is gone": {fate: server.ProbeUnreachable, to: pod, state: api.ProbeLost, obstacle: "ICMP says"},
		"returned": {fate: server.ProbeReturned, state: api.ProbeLost, lost: "datagrams to its udp port 53 are lost here: this host sends them back",
			obstacle: "datagrams to its udp port 53 are lost here: this host sends them back"},
		"nothing is seen":        {state: api.ProbeUnknown, problem: "udp port 53 are taken here is not known: nothing answers datagrams, and connection tracking does not know"},
		"tracked, not passed on": {to: own, state: api.ProbeUnknown, problem: "udp port 53 are taken here is not known: nothing answers"},
		"no tracking":            {blind: errors.New("no nf_conntrack_netlink"), state: api.ProbeUnknown, problem: "is not known: nothing answers datagrams, and no nf_conntrack_netlink"},
	} {
		h, s := newHost(), service(53)
		s.Protocol = model.ProtocolUDP
		h.fates[53], h.to, h.blind = test.fate, test.to, test.blind
		h.Set(of(s), []netip.Addr{vip}, "chain c")
		h.look(16)
		h.says(t, name, s, test.lost, test.obstacle, test.problem)
		if status := h.Status(h.now); len(status) != 1 || status[0].State != test.state || status[0].Protocol != "udp" {
			t.Errorf("%s: %+v", name, status)
		}
		if len(h.ended) == 0 || !slices.Equal(h.ended, h.sent[:len(h.ended)]) || len(h.ended) < len(h.sent)-1 {
			t.Errorf("%s: %d of %d were ended", name, len(h.ended), len(h.sent))
		}
		// what was seen is no proof for long once it is seen no more
		h.fates[53], h.to, h.blind = server.ProbeUnanswered, netip.AddrPort{}, nil
		h.look(40)
		h.says(t, name+", and no more", s, "", "", "udp port 53 are taken here is not known: nothing answers")
		h.fates[53] = server.ProbeAnswered
		h.look(20)
		h.says(t, name+", and answered", s, "", "", "")
	}
}

// Applications see the datagrams.
func TestDatagramsAreFew(t *testing.T) {
	h, s := newHost(), service(53)
	s.Protocol = model.ProtocolUDP
	h.to = netip.MustParseAddrPort("10.244.1.7:5353")
	h.Set(of(s), []netip.Addr{vip}, "chain c")
	h.look(120)
	if len(h.sent) < 6 || len(h.sent) > 8 {
		t.Errorf("%d datagrams in two minutes", len(h.sent))
	}
}

// Promise: A probe by UDP is not from a client that may ask by itself where the service allows others, nor from a port that has a flow or that clients use; what is noted of it ends
// when its answer is there, or is late.
func TestDatagramsAreFromNoClientsPort(t *testing.T) {
	for allow, want := range map[string]string{
		"": "10.9.0.1", "203.0.113.7/32 198.51.100.0/24": "198.51.100.0", "203.0.113.7/32 203.0.113.8/31": "203.0.113.7", "2001:db8:7::1/128 2001:db8:8::/64": "2001:db8:8::",
	} {
		h, s := newHost(), service(53)
		if s.Protocol = model.ProtocolUDP; strings.Contains(want, ":") {
			s.VIP = vip6
		}
		for prefix := range strings.FieldsSeq(allow) {
			s.Allow = append(s.Allow, netip.MustParsePrefix(prefix))
		}
		h.to, h.fates[53] = netip.MustParseAddrPort("10.244.1.7:5353"), server.ProbeAnswered
		h.busy = func(port uint16) bool { return port%3 == 0 }
		h.Set(of(s), []netip.Addr{s.VIP}, "chain c")
		h.look(16 * lastPort)
		seen := map[uint16]bool{}
		for _, probe := range h.sent {
			if seen[probe.Client.Port()] = true; probe.Client.Addr().String() != want {
				t.Fatalf("allow %q: from %s, not %s", allow, probe.Client, want)
			}
		}
		for _, port := range append([]uint16{3, 999}, used...) {
			if seen[port] {
				t.Errorf("allow %q: from port %d", allow, port)
			}
		}
		if len(seen) < lastPort/2 || len(h.sent)-len(h.ended) > 1 {
			t.Errorf("allow %q: from %d ports, %d of %d were ended", allow, len(seen), len(h.ended), len(h.sent))
		}
		h.sent, h.busy = nil, func(uint16) bool { return true }
		if h.look(20); len(h.sent) > 0 {
			t.Errorf("allow %q: a client's own flow was probed: %+v", allow, h.sent)
		}
		h.busy = func(uint16) bool { return false }
		if h.look(2); len(h.sent) == 0 {
			t.Errorf("allow %q: no probe once a port has no flow", allow)
		}
	}
}

func TestWhatProbesShowCounts(t *testing.T) {
	for fate, want := range map[server.Fate]string{
		server.ProbeAnswered: "", server.ProbeRefused: "", server.ProbeUnanswered: "nothing answers", server.ProbeRejected: "resets them", server.ProbeReturned: "back to the network",
	} {
		for translates, lost := range map[string]string{"": notAddress, "chain c": want} {
			h, s := newHost(), service(80, 443)
			h.fates[80], h.fates[443] = server.ProbeAnswered, fate
			h.Set(of(s), []netip.Addr{vip}, translates)
			h.look(10)
			if want == "" {
				lost = ""
			}
			certain := lost
			if translates != "" && fate != server.ProbeReturned { // it may be that of probes alone
				certain = ""
			}
			h.says(t, fmt.Sprintf("fate %d, %q", fate, translates), s, certain, lost, "")
			h.fates[443] = server.ProbeAnswered
			h.look(10)
			h.says(t, "later", s, "", "", "")
		}
	}
}

// One SYN may be lost on any host.
func TestOneLostProbeMeansNothing(t *testing.T) {
	h, s := newHost(), service(80)
	h.Set(of(s), []netip.Addr{vip}, "chain c")
	h.fates[80] = server.ProbeAnswered
	h.look(2)
	h.fates[80] = server.ProbeUnanswered
	for count := len(h.sent); len(h.sent) < count+2; {
		h.look(1)
	}
	h.says(t, "one was lost", s, "", "", "")
	h.look(3)
	h.says(t, "two were lost", s, "", "since 2001-09-09T", "")
}

// What was seen once is not true for ever, and is not what keeps a server from its clients.
func TestWhatProbesHaveShownGrowsOld(t *testing.T) {
	for _, fate := range []server.Fate{server.ProbeAnswered, server.ProbeReturned} {
		h, s := newHost(), service(80)
		h.Set(of(s), []netip.Addr{vip}, "chain c")
		h.fates[80] = fate
		h.look(4)
		h.refuses = errors.New("no probes")
		h.look(40)
		h.says(t, fmt.Sprint("fate ", fate), s, "", "is not known: no probes", "")
		if status := h.Status(h.now); len(status) != 1 || status[0].State != api.ProbeUnknown || status[0].Age.Duration() < 30*time.Second {
			t.Errorf("%+v", status)
		}
		h.refuses = nil
		h.fates[80] = server.ProbeAnswered
		h.look(7)
		h.says(t, "probes again", s, "", "", "")
	}
}

// Set comes with every change of the network: it forgets nothing of ports that stay.
func TestPortsThatStayAreKnown(t *testing.T) {
	h, s := newHost(), service(80)
	h.fates[80] = server.ProbeAnswered
	h.Set(of(s), []netip.Addr{vip}, "chain c")
	h.look(2)
	other := service(80, 81)
	h.Set(of(other), []netip.Addr{vip}, "chain c")
	h.says(t, "another port", other, "", "tcp port 81 are taken here is not known", "")
	h.Set(of(service(80)), []netip.Addr{vip}, "chain c")
	h.says(t, "without it", service(80), "", "", "")
}

// A late answer to one probe is not one to the next, and whoever answers is told that it was one.
func TestEveryProbeIsOfItsOwn(t *testing.T) {
	h, s := newHost(), service(80)
	h.fates[80] = server.ProbeAnswered
	h.Set(of(s), []netip.Addr{vip}, "chain c")
	h.look(60)
	seen := map[netip.AddrPort]bool{}
	for _, probe := range h.sent {
		if seen[probe.Client] || probe.Client.Port() == 0 || probe.Client.Port() > lastPort || probe.Client.Addr() != balancer {
			t.Errorf("a probe is from %s", probe.Client)
		}
		seen[probe.Client] = true
	}
	if !slices.Equal(h.ended, h.sent) || len(h.sent) != 12 {
		t.Errorf("%d probes, %d were ended", len(h.sent), len(h.ended))
	}
}

// Clients are those that the service allows and whose answers the agent's programs see.
func TestProbesAreFromClientsThatAreAllowed(t *testing.T) {
	for _, test := range []struct {
		vip   netip.Addr
		allow string
		want  string // or a part of why there is none
	}{
		{vip, "", "10.9.0.1"}, {vip6, "", "2001:db8::1"}, {vip, "10.9.0.0/16", "10.9.0.1"}, {vip, "203.0.113.0/24", "203.0.113.1"},
		{vip, "203.0.113.7/32", "203.0.113.7"}, {vip, "2001:db8:7::/48", "no client of its family is allowed"},
		{vip, "10.244.0.1/32", "answers to 10.244.0.1 leave by cni0"}, {vip6, "2001:db8:7::/48", "2001:db8:7::1"},
	} {
		h, s := newHost(), service(80)
		if s.VIP = test.vip; test.allow != "" {
			s.Allow = []netip.Prefix{netip.MustParsePrefix(test.allow)}
		}
		h.Set(of(s), []netip.Addr{test.vip}, "chain c")
		h.look(1)
		have := ""
		if len(h.sent) > 0 {
			have = h.sent[0].Client.Addr().String()
		} else {
			found, _ := h.Obstacles(h.now)
			have = strings.Join(found, "\n")
		}
		if !strings.Contains(have, test.want) {
			t.Errorf("%s, allow %q: %s, not %s", test.vip, test.allow, have, test.want)
		}
	}
}

// The answer to a load balancer that is switched off waits for its neighbour, and never leaves.
func TestNobodyIsProbedAsWhoCannotBeAnswered(t *testing.T) {
	h, s := newHost(), service(80)
	h.fates[80], h.silent[balancer] = server.ProbeAnswered, true
	h.Set(of(s), []netip.Addr{vip}, "chain c")
	h.look(2)
	if len(h.sent) != 1 || h.sent[0].Client.Addr() == balancer {
		t.Errorf("sent %+v", h.sent)
	}
	h.says(t, "as another", s, "", "", "")
	s.Allow = []netip.Prefix{netip.PrefixFrom(balancer, 32)}
	h.look(60)
	h.says(t, "nobody else is allowed", s, "", "is not known", "")
	h.silent[balancer] = false
	h.look(2) // not only when the next one would be due
	h.says(t, "it answers", s, "", "", "")
}

// However many ports there are, a second has few probes, each port has its turn, and none is unknown because of the others.
func TestManyPortsTakeTurns(t *testing.T) {
	h, s := newHost(), service()
	for i := range uint16(2000) {
		s.Ports = append(s.Ports, 1000+i)
		h.fates[1000+i] = server.ProbeAnswered
	}
	h.Set(of(s), []netip.Addr{vip}, "chain c")
	for second := range 300 {
		before := len(h.sent)
		h.look(1)
		if count := len(h.sent) - before; count > perLook {
			t.Fatalf("%d probes in a second", count)
		}
		if found, _ := h.Obstacles(h.now); second > 64 && len(found) > 0 {
			t.Fatalf("after %d s: %s", second, found[0])
		}
	}
}
