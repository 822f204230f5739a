package daemon_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/api"
)

// events streams a trace.
func (h *lbHost) events(query string) <-chan api.TraceEvent {
	h.t.Helper()
	stream, err := h.client.Stream(h.t.Context(), api.PathTrace+"?"+query)
	require(h.t, err)
	events := make(chan api.TraceEvent, 10_000)
	go func() {
		defer close(events)
		defer stream.Close()
		for lines := bufio.NewScanner(stream); lines.Scan(); {
			var event api.TraceEvent
			if json.Unmarshal(lines.Bytes(), &event) != nil {
				return
			}
			events <- event
		}
	}()
	return events
}

// connectUntil has clients connect until an event comes.
func (h *lbHost) connectUntil(events <-chan api.TraceEvent) (event api.TraceEvent) {
	h.t.Helper()
	h.connect(func() bool {
		select {
		case event = <-events:
			return true
		default:
			return false
		}
	})
	return event
}

// A client's SYN goes into a tunnel, and what is captured is the SYN.
func TestATraceHasThePacketThatTheClientSent(t *testing.T) {
	h := newLBHost(t)
	h.awaitFileAfter(fmt.Sprintf(lbFile, ""))
	events := h.events("service=web&headers=1")
	began := time.Now()
	event := h.connectUntil(events)
	packet := gopacket.NewPacket(event.Headers, layers.LayerTypeEthernet, gopacket.Default)
	ip, _ := packet.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	tcp, _ := packet.Layer(layers.LayerTypeTCP).(*layers.TCP)
	if ip == nil || tcp == nil || packet.ErrorLayer() != nil || ip.Protocol != layers.IPProtocolTCP {
		t.Fatalf("captured %v", packet)
	}
	source, _ := netip.AddrFromSlice(ip.SrcIP)
	if netip.AddrPortFrom(source, uint16(tcp.SrcPort)) != event.Source || !tcp.SYN || ip.DstIP.String() != "198.51.100.10" || int(event.FrameLength) != len(event.Headers) {
		t.Errorf("captured %v of %d bytes; the event is %+v", packet, event.FrameLength, event)
	}
	if event.Interface != "eth0" || event.Time.Before(began.Add(-time.Second)) || event.Time.After(time.Now().Add(time.Second)) {
		t.Errorf("by %s at %v", event.Interface, event.Time)
	}
}

// Where few packets come, all of them are the sample, and events have no headers unless somebody asks for them.
func TestASampledTraceShowsAllWhereFewPacketsCome(t *testing.T) {
	h := newLBHost(t)
	h.awaitFileAfter(fmt.Sprintf(lbFile, ""))
	events := h.events("service=web&sample=auto")
	event := h.connectUntil(events)
	if event.StandsFor != 1 || event.Headers != nil || event.Service != "web" {
		t.Errorf("%+v", event)
	}
	if _, err := h.client.Stream(t.Context(), api.PathTrace+"?sample=0"); err == nil {
		t.Error("one of 0 packets is traced")
	}
}

// Whoever reads the first trace is stopped, as by Ctrl-S in its terminal.
//
// Promise: A trace whose reader takes nothing for seconds ends, and the next one begins.
func TestAReaderThatStandsDoesNotKeepTheTrace(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitFileAfter(fmt.Sprintf(lbFile, ""))
	stopped, err := h.client.Stream(t.Context(), api.PathTrace+"?service=web")
	require(t, err)
	defer stopped.Close()
	if _, err := h.client.Stream(t.Context(), api.PathTrace+"?service=web"); err == nil {
		t.Fatal("two traces at a time")
	}
	var next io.ReadCloser
	h.connect(func() bool { // one event in a while, until the first reader is given up
		next, err = h.client.Stream(t.Context(), api.PathTrace+"?service=web")
		return err == nil
	})
	defer next.Close()
	lines := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(next).ReadString('\n')
		lines <- line
	}()
	var line string
	h.connect(func() bool {
		select {
		case line = <-lines:
			return true
		default:
			return false
		}
	})
	if !strings.Contains(line, `"service":"web"`) {
		t.Errorf("the next trace says %q", line)
	}
}
