package daemon_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// aSYN is one as Linux sends it.
func aSYN(client, vip string) *ballastv1.MadeUpPacket {
	return &ballastv1.MadeUpPacket{Client: client, Vip: vip, TcpFlags: 2, Tsval: new(uint32(1)), Tsecr: new(uint32(0))}
}

func (h *lbHost) explain(packet *ballastv1.MadeUpPacket) *ballastv1.Explanation {
	h.t.Helper()
	answer, err := h.client.Fleet().ListExplanations(h.t.Context(), &ballastv1.ListExplanationsRequest{Packet: packet})
	require(h.t, err)
	if len(answer.Explanations) != 1 || answer.Explanations[0].Error != "" {
		h.t.Fatalf("explanations are %v", answer.Explanations)
	}
	return answer.Explanations[0]
}

// packets is what this node has counted.
func (h *lbHost) packets() (sum uint64) {
	h.t.Helper()
	var counters api.Counters
	require(h.t, h.client.Get(h.t.Context(), api.PathCounters, &counters))
	for _, packets := range counters.Counters {
		sum += packets
	}
	return sum
}

// What is said of a segment of a client is what a trace then shows of it.
func TestALoadBalancerExplainsThePacketsThatATraceShows(t *testing.T) {
	h := newLBHost(t)
	h.awaitFileAfter(strings.Replace(fmt.Sprintf(lbFile, ""), "ports: [80],", "ports: [80], dispatch: maglev,", 1))
	events := h.events("service=web")
	event := h.connectUntil(events)
	e := h.explain(aSYN(event.Source.String(), "198.51.100.10:80"))
	if event.Verdict != "forwarded_new" || e.Verdict != event.Verdict || e.Service != "web" || e.Server.GetName() != event.Server || e.Server.GetId() != uint32(event.ID) || e.Action != "send" || e.Rung != "new" || len(e.Candidates) > 0 {
		t.Errorf("said %v\nof %+v", e, event)
	}
	tunnel := "IPv4 10.9.0.1 > " + e.Server.GetAddress()
	if !slices.Contains(e.Headers, tunnel) || !slices.Contains(e.Headers, "IPv4 "+event.Source.Addr().String()+" > 198.51.100.10") || !strings.HasPrefix(e.Path, "eth0 ") || e.Interface != "eth0" {
		t.Errorf("frame %q by %q, without %s", e.Headers, e.Path, tunnel)
	}
	before := h.packets()
	other := h.explain(aSYN(event.Source.String(), "198.51.100.10:81"))
	if other.Verdict != "passed_no_service" || other.Action != "host" || len(other.Notes) != 1 || !strings.Contains(other.Notes[0], "is a VIP of service web, but tcp port 81 is not of it") {
		t.Errorf("of another port it says %v", other)
	}
	if after := h.packets(); after != before {
		t.Errorf("%d packets were counted, then %d", before, after)
	}
	if _, err := h.client.Fleet().ListExplanations(t.Context(), &ballastv1.ListExplanationsRequest{}); err == nil || !strings.Contains(err.Error(), "give ADDRESS:PORT") {
		t.Errorf("of no packet: %v", err)
	}
}

func TestAControllerAsksALoadBalancerAboutAPacket(t *testing.T) {
	t.Parallel()
	h := newRemoteHost(t)
	controller, end := h.control(1)
	defer end()
	controller.Topics.SetState(viewOf(1, []uint16{2}, 2, 3, 4))
	h.start()
	h.await("the first state", func(s api.LBStatus) bool { return s.Revision == 1 })
	h.awaitStatuses("the state", "s2 unhealthy 0", "s3 unchecked 1", "s4 unchecked 1")
	list, err := controller.Nodes.Explain(t.Context(), aSYN("203.0.113.7:40312", "198.51.100.10:80"))
	require(t, err)
	if len(list) != 1 || list[0].Node != "lb1" || list[0].Error != "" || list[0].Verdict != "forwarded_new" {
		t.Fatalf("answers are %v", list)
	}
	chosen := map[string]bool{}
	for _, c := range list[0].Candidates {
		chosen[c.Name] = true
	}
	if len(chosen) != 2 || !chosen["s3"] || !chosen["s4"] {
		t.Errorf("a policy that draws may choose %v", list[0].Candidates)
	}
	list, err = controller.Nodes.Explain(t.Context(), &ballastv1.MadeUpPacket{Client: "nobody"}) // whatever a controller asks
	if err != nil || len(list) != 1 || !strings.Contains(list[0].Error, "give ADDRESS:PORT") {
		t.Errorf("answers are %v, %v", list, err)
	}
}

// Promise: Where a service has a predecessor, what is explained of a SYN says whom segments of connections that did not begin here go to.
func TestOfAPredecessorWhatUnknownConnectionsGetIsExplained(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.write(succeeding("{addresses: [10.9.0.4]}"))
	h.start()
	h.await("ready", func(s api.LBStatus) bool { return s.Ready && len(s.Problems) == 0 })
	packet := aSYN("203.0.113.7:40312", "198.51.100.10:80")
	if e := h.explain(packet); e.Verdict != "forwarded_new" || e.Server.GetName() == "predecessor" || e.Unknown.GetName() != "predecessor" || e.Unknown.GetAddress() != "10.9.0.4" {
		t.Errorf("of a SYN: %v", e)
	}
	packet.TcpFlags, packet.Tsecr = model.TCPAck, new(uint32(0x12345678))
	if e := h.explain(packet); e.Server.GetAddress() != "10.9.0.4" || e.Unknown != nil {
		t.Errorf("of an ACK with the echo of another host: %v", e)
	}
	h.awaitFile(h.write(fmt.Sprintf(lbFile, "")))
	if e := h.explain(aSYN("203.0.113.7:40312", "198.51.100.10:80")); e.Unknown != nil {
		t.Errorf("without a predecessor: %v", e)
	}
}
