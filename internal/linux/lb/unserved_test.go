package lb

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// rejecting is a world with a service of each family and unserved: reject.
func rejecting(t testing.TB) *world {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil), udpService("dns", vip4, nil))
	w.update(func(want *plan.Want) { want.Rejects = true })
	return w
}

// Promise: With `unserved: reject`, a packet to a VIP that is for no service is answered by a TCP RST or an ICMP
// error.
// Also held by TestAHostIsRefusedAtOnceWhatNoServiceTakes.
// Public: cilium/cilium#10002 (clients of a service without backends wait instead of being refused).
func TestWhatNoServiceTakesIsRefused(t *testing.T) {
	w := rejecting(t)
	for _, vip := range []netip.Addr{vip4, vip6} {
		for n, flags := range []byte{syn, syn | ack, ack, psh | ack, fin | ack, fin, syn | fin, 0, syn | 0x40 | 0x80} {
			for _, length := range []int{0, 1, 2, 3, 100, 1400} {
				f := flowTo(vip, 9999, n)
				for _, options := range [][]byte{nil, synOptions(), timestamps(5, 6)} {
					segment := f.tcp(flags, options, make([]byte, length))
					got, _ := w.checkVerdict(f.frame(segment), lbVerdictANSWERED_UNSERVED)
					w.decode(got.frame)
					w.checkVerdict(ethernet(7, ipPacket(f.client.Addr(), vip, 6, segment)), lbVerdictANSWERED_UNSERVED)
				}
			}
		}
		for length := range 300 {
			f := flowTo(vip, 9999, length)
			body := make([]byte, length)
			for i := range body {
				body[i] = byte(i + length)
			}
			packet := ipPacket(f.client.Addr(), vip, 17, f.udp(body))
			got, _ := w.checkVerdict(ethernet(0, packet), lbVerdictANSWERED_UNSERVED)
			w.decode(got.frame)
			w.checkVerdict(append(ethernet(7, packet), 0xaa, 0xbb, 0xcc), lbVerdictANSWERED_UNSERVED) // padded
			w.checkVerdict(fragmentOf(f.client.Addr(), vip, 17, 9, 0, true, f.udp(body)), lbVerdictANSWERED_UNSERVED)
		}
	}
	for _, protocol := range []uint8{47, 0, 255} { // 0 and 255 have meanings of their own in keys of destinations
		for length := range 200 {
			w.checkVerdict(ethernet(0, ipPacket(client4, vip4, protocol, make([]byte, length))), lbVerdictANSWERED_UNSERVED)
		}
	}
	f := flowTo(vip4, 443, 1)
	w.checkVerdict(ethernet(0, ipPacket(client4, vip4, 17, f.udp(nil))), lbVerdictANSWERED_UNSERVED) // of the other protocol
}

func TestWhatMustNotBeAnsweredIsNotRefused(t *testing.T) {
	w := rejecting(t)
	for _, vip := range []netip.Addr{vip4, vip6} {
		f := flowTo(vip, 9999, 1)
		client := f.client.Addr()
		served := flowTo(vip, 443, 1)
		former := plus(vip, 77)
		for name, frame := range map[string][]byte{
			"RST":                        f.frame(f.tcp(rst, nil, nil)),
			"RST with ACK":               f.frame(f.tcp(rst|ack, nil, nil)),
			"a first fragment of TCP":    fragmentOf(client, vip, 6, 9, 0, true, f.tcp(ack, nil, make([]byte, 80))),
			"a later fragment of TCP":    fragmentOf(client, vip, 6, 9, 80, false, make([]byte, 80)),
			"a later fragment of UDP":    fragmentOf(client, vip, 17, 9, 80, false, make([]byte, 80)),
			"an error of the path":       pathError(f, 3, 1, 0, f.answer(1), 128),
			"another ICMP message":       icmpFrame(client, vip, 137, 0, 1, make([]byte, 40)),
			"to an address that is none": flow{f.client, netip.AddrPortFrom(former, 9999)}.frame(f.tcp(syn, nil, nil)),
			"to a service":               served.frame(served.tcp(syn, synOptions(), nil)),
		} {
			if got, _ := w.check(frame); got.verdict == lbVerdictANSWERED_UNSERVED || got.action == xdpTX && got.verdict != lbVerdictFORWARDED_NEW {
				t.Errorf("%s, %s: %s, action %d", vip, name, verdictNames[got.verdict], got.action)
			}
		}
		for source, one := range sourcesOf(vip) {
			verdict := lbVerdictDROPPED_IMPOSSIBLE_SOURCE
			if one {
				verdict = lbVerdictANSWERED_UNSERVED
			}
			from := flow{netip.AddrPortFrom(source, 999), f.service}
			w.checkVerdict(from.frame(from.tcp(syn, nil, nil)), verdict)
			w.checkVerdict(ethernet(0, ipPacket(source, vip, 17, from.udp(nil))), verdict)
		}
		w.checkVerdict(icmpFrame(client, vip, map[bool]byte{false: 8, true: 128}[vip.Is6()], 0, 1, nil), lbVerdictANSWERED_ECHO)
	}
	options := append([]byte{0x46}, ipPacket(client4, vip4, 6, flowTo(vip4, 9999, 1).tcp(syn, nil, make([]byte, 40)))[1:]...)
	w.checkVerdict(ethernet(0, options), lbVerdictPASSED_UNSUPPORTED)
	for _, header := range []byte{0, 43, 50, 59, 60, 132} {
		w.checkVerdict(ethernet(0, ipPacket(client6, vip6, header, make([]byte, 40))), lbVerdictPASSED_UNSUPPORTED)
	}
}

// Connections live on, but for those to a port that has been taken away. Routers may go on sending what is for a VIP that is gone, and nobody
// knows whose it is by then.
func TestOnlyPortsOfVIPsAreRefusedAsTheConfigurationChanges(t *testing.T) {
	for _, path := range []string{"", "lb_slow"} {
		for _, vip := range []netip.Addr{vip4, vip6} {
			w := newWorld(t, serviceOf("web", vip, nil), udpService("dns", vip, nil))
			w.path = path
			other := flowTo(vip, 9999, 1)
			stays, goes := flowTo(vip, 443, 1), flowTo(vip, 80, 1)
			unknown := other.frame(other.tcp(syn, synOptions(), nil))
			living := func(f flow) []byte { return f.carrying(w.cookieFor("web", f, 2, 1)) }
			w.checkVerdict(unknown, lbVerdictPASSED_NO_SERVICE)
			w.update(func(want *plan.Want) { want.Rejects = true })
			w.checkVerdict(unknown, lbVerdictANSWERED_UNSERVED)
			for _, f := range []flow{stays, goes} {
				w.checkVerdict(living(f), lbVerdictFORWARDED_BY_COOKIE)
			}
			w.update(func(want *plan.Want) { service(want, "web").Ports = []uint16{443} })
			w.checkVerdict(living(stays), lbVerdictFORWARDED_BY_COOKIE)
			w.checkVerdict(living(goes), lbVerdictANSWERED_UNSERVED)
			w.update(func(want *plan.Want) { want.Rejects = false })
			w.checkVerdict(unknown, lbVerdictPASSED_NO_SERVICE)
			w.checkVerdict(living(stays), lbVerdictFORWARDED_BY_COOKIE)
			w.update(func(want *plan.Want) { want.Rejects = true })
			w.update(func(want *plan.Want) { want.Services = want.Services[1:] })
			w.checkVerdict(flowTo(vip, 443, 1).frame(stays.tcp(syn, nil, nil)), lbVerdictANSWERED_UNSERVED) // the VIP has another service
			w.update(func(want *plan.Want) { want.Services = nil })
			for _, frame := range [][]byte{unknown, stays.frame(stays.tcp(syn, nil, nil))} {
				w.checkVerdict(frame, lbVerdictPASSED_NO_SERVICE)
			}
		}
	}
}

// The first tier sends what it has a service for: a node that has none yet must not reset its connections.
func TestWhatTheFirstTierSendsIsNotRefused(t *testing.T) {
	for i, vip := range []netip.Addr{vip4, vip6} {
		w := secondNode(t, vip, nodeAddresses[i])
		w.update(func(want *plan.Want) { want.Rejects = true })
		f := flowTo(vip, 9999, 1)
		packet := ipPacket(f.client.Addr(), vip, 6, f.tcp(ack, nil, []byte("data")))
		w.checkVerdict(ethernet(0, tunnelled(nodeAddresses[i], i == 0, 0, packet)), lbVerdictPASSED_NO_SERVICE)
		w.checkVerdict(ethernet(0, packet), lbVerdictANSWERED_UNSERVED)
	}
}

// A row that is not there yet, or no more, is an update that goes on.
func TestAServiceWithoutARowIsNotRefused(t *testing.T) {
	w := rejecting(t)
	f := flowTo(vip4, 443, 1)
	number := w.tables.Places()["web"].Number
	row := w.lb.ServiceRow(number)
	mustSet(w.lb.apply(plan.PointService{Number: number}))
	got := w.run(f.frame(f.tcp(syn, synOptions(), nil)))
	mustSet(w.lb.apply(plan.PointService{Number: number, Row: row}))
	if got.verdict != lbVerdictPASSED_NO_SERVICE {
		t.Errorf("%s", verdictNames[got.verdict])
	}
}

// A new process goes on with what is refused, as the maps say.
func TestRestoredTablesGoOnRefusing(t *testing.T) {
	w := rejecting(t)
	restored, err := plan.Restore(testLimits, w.lb)
	mustSet(err)
	changes, err := restored.Update(&w.want)
	mustSet(err)
	for _, change := range changes {
		switch change.(type) {
		case plan.SetVIP, plan.DeleteVIP:
			t.Errorf("%+v: nothing has changed", change)
		}
	}
	want := w.want
	want.Rejects = false
	changes, err = restored.Update(&want)
	mustSet(err)
	set := 0
	for _, change := range changes {
		if c, ok := change.(plan.SetVIP); ok && c.Number == 0 {
			set++
		}
	}
	if set != 2 {
		t.Errorf("%d VIPs stop to refuse: %+v", set, changes)
	}
	mustSet(w.lb.adoptVIPs())
	f := flowTo(vip4, 9999, 1)
	w.checkVerdict(f.frame(f.tcp(syn, nil, nil)), lbVerdictANSWERED_UNSERVED)
}

func TestAHostIsRefusedAtOnceWhatNoServiceTakes(t *testing.T) {
	w := rejecting(t)
	router, _ := routerAndLB(t, w)
	mustSet(router.Do(func() error { // without a program frames that leave by XDP_TX are lost here
		device, err := net.InterfaceByName("eth0")
		if err == nil {
			_, err = link.AttachPass(device)
		}
		return err
	}))
	for _, vip := range []netip.Addr{vip4, vip6} {
		socket := sendDatagram(t, router, netip.AddrPortFrom(vip, 9999))
		_ = socket.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := socket.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("UDP to %s: %v", vip, err)
		}
		err := router.Do(func() error {
			connection, err := net.DialTimeout("tcp", netip.AddrPortFrom(vip, 9999).String(), 20*time.Second)
			if err == nil {
				connection.Close()
			}
			return err
		})
		if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("TCP to %s: %v", vip, err)
		}
	}
	if got := w.unserved(lbVerdictANSWERED_UNSERVED); got < 4 {
		t.Errorf("%d answers", got)
	}
}

func TestPortsOfSubflowsWithoutAServerAreRefused(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) { s.MPTCP = model.MPTCP{FirstPort: 40000, Ports: 64} }))
	w.update(func(want *plan.Want) { want.Rejects = true })
	verdicts := map[lbVerdict]int{}
	for port := range uint16(64) {
		f := flowTo(vip4, 40000+port, 1)
		got, _ := w.check(f.frame(f.tcp(syn, synOptions(), nil)))
		verdicts[got.verdict]++
	}
	if fmt.Sprint(verdicts) != fmt.Sprint(map[lbVerdict]int{lbVerdictFORWARDED_BY_PORT: 3, lbVerdictANSWERED_UNSERVED: 61}) {
		t.Error(verdicts)
	}
}
