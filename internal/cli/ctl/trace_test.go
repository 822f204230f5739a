package ctl_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/fleettest"
)

// aTracedLB answers a trace with events, and notes what it was asked for. It goes on until the client goes where it is said to.
func aTracedLB(t *testing.T, events []api.TraceEvent, goesOn bool) (ctl *terminal, asked func() url.Values) {
	queries := make(chan url.Values, 10)
	server := api.NewServer()
	server.HandleRaw("GET "+api.PathTrace, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		queries <- r.URL.Query()
		for _, event := range events {
			json.NewEncoder(w).Encode(event)
		}
		http.NewResponseController(w).Flush()
		if goesOn {
			<-r.Context().Done()
		}
	}))
	path := filepath.Join(t.TempDir(), "ctl.sock")
	go server.Serve(t.Context(), listen(t, "unix", path))
	return &terminal{t, nil, []string{"ctl", "--socket", path}}, func() url.Values { return <-queries }
}

func tracedEvents(n int) (events []api.TraceEvent) {
	for i := range n {
		e := api.TraceEvent{Time: time.Unix(1000, int64(i)), Interface: "eth0", Source: netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i % 4)}), 1024),
			Destination: netip.MustParseAddrPort("198.51.100.10:443"), Flags: "ACK", Length: 1500, Service: "web", Server: "s1", ID: 1, Verdict: "forwarded_by_cookie",
			StandsFor: 1, FrameLength: 1514, Headers: []byte("headers as they came")}
		if i%4 == 3 {
			e.Service, e.Server, e.ID, e.Verdict = "", "", 0, "dropped_malformed"
		}
		events = append(events, e)
	}
	return events
}

func TestATraceIsWrittenAsACapture(t *testing.T) {
	events := tracedEvents(4)
	events[2].Suppressed, events[3].Interface = 7, "eth1"
	ctl, asked := aTracedLB(t, events, false)
	file := filepath.Join(t.TempDir(), "web.pcapng")
	ctl.expect("trace --service web --count 4 --pcap "+file, "4 packets captured, of each at most 192 bytes of headers; 7 left out\n")
	if query := asked(); query.Get("headers") == "" || query.Get("service") != "web" || query.Get("sample") != "" {
		t.Errorf("asked for %v", query)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: others may read whose clients they are", info, err)
	}
	content, err := os.ReadFile(file)
	fleettest.Require(t, err)
	r, err := pcapgo.NewNgReader(bytes.NewReader(content), pcapgo.DefaultNgReaderOptions)
	fleettest.Require(t, err)
	for i, want := range []string{"forwarded_by_cookie -> s1 (id 1) service web", "forwarded_by_cookie -> s1 (id 1) service web",
		"forwarded_by_cookie -> s1 (id 1) service web (7 left out before)", "dropped_malformed"} {
		head, info, options, err := r.ReadPacketDataWithOptions()
		fleettest.Require(t, err)
		of, _ := r.Interface(info.InterfaceIndex)
		if string(head) != "headers as they came" || info.Length != 1514 || of.Name != events[i].Interface || fmt.Sprint(options.Comments) != "["+want+"]" {
			t.Errorf("packet %d: %q of %d by %s, %q", i, head, info.Length, of.Name, options.Comments)
		}
	}
	ctl.expect("trace --count 4 --pcap -", string(content[len(content)-40:])) // a file is no terminal
}

func TestTheTopOfATraceSaysWhatPartOfThePacketsItSaw(t *testing.T) {
	ctl, asked := aTracedLB(t, tracedEvents(40), true)
	ctl.expect("trace --top --count 40", "40 packets in ", "CLIENT       PACKETS  SHARE\n203.0.113.0  10       25.0%\n", "SERVICE  PACKETS  SHARE\nweb      30       75.0%\n(none)   10       25.0%\n",
		"VERDICT              PACKETS  SHARE\nforwarded_by_cookie  30       75.0%\n")
	if query := asked(); query.Get("sample") != "auto" || query.Get("headers") != "" {
		t.Errorf("asked for %v", query)
	}
	ctl.expect("trace --top=1 --count 40 --json", `"sampled_packets": 40`, `"share": 0.75`)
	ctl.expect("trace --top --duration 300ms", "40 packets in ") // and then it ends

	events := tracedEvents(40)
	for i := range events {
		events[i].StandsFor = 512
	}
	events[0].Suppressed = 10
	ctl, _ = aTracedLB(t, events, true)
	ctl.expect("trace --top=2 --count 40", "about 25600 packets in ", "of which 40 were looked at by chance: 1 of 640", "web      19200    75.0% +- 13.7\n")
}

func TestATraceThatTheDaemonEndsIsNoSuccess(t *testing.T) {
	ctl, _ := aTracedLB(t, tracedEvents(2), false)
	for line, want := range map[string]string{
		"trace":                        "the load balancer ended the trace",
		"trace --count 3":              "the load balancer ended the trace",
		"trace --top --pcap x":         "give one of them",
		"trace --pcap x --json":        "leave out --output",
		"trace --top=0":                "use 1 or more",
		"trace --count -1":             "use 0 or more",
		"trace --duration -1s":         "--duration",
		"trace --pcap /nowhere/x.pcap": "write the capture: open /nowhere/x.pcap",
		"trace --sample 4294967296":    "--sample",
		"trace --top=many":             "--top",
	} {
		ctl.refuse(line, want)
	}
}
