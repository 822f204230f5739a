package ctl_test

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
)

func TestSessionsAndTracesOfThemAreShown(t *testing.T) {
	services := []api.SessionCounts{}
	events := []api.TraceEvent{{Source: netip.MustParseAddrPort("203.0.113.7:1024"), Destination: netip.MustParseAddrPort("198.51.100.10:443"), Flags: "PSH,ACK", Length: 600,
		Server: "s1", ID: 1, Verdict: "forwarded_new", Session: &api.TraceSession{Outcome: "limited", Identity: "ticket", Name: "00c0ffee", ID: 2}}}
	server := api.NewServer()
	server.Handle("GET "+api.PathSessions, func(*http.Request) (any, error) { return services, nil })
	server.HandleRaw("GET "+api.PathTrace, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, event := range events {
			json.NewEncoder(w).Encode(event)
		}
	}))
	path := filepath.Join(t.TempDir(), "ctl.sock")
	go server.Serve(t.Context(), listen(t, "unix", path))
	ctl := &terminal{t, nil, []string{"ctl", "--socket", path}}
	ctl.expect("sessions -o wide", "no service has session tls")
	services = append(services, api.SessionCounts{Service: "web", Clients: 16, Answered: 100, Handshakes: 90,
		Hellos: map[string]uint64{"resumed": 40, "none": 21, "limited": 7, "not_tls": 3}})
	ctl.expect("sessions -o wide", "SERVICE  SYNS  HANDSHAKES  RESUMED  BY POLICY  NONE", "web      100   90          40       31         21    0        0            7        0        0           0          3")
	ctl.expect("sessions --json", `"session_clients": 16`, `"limited": 7`)
	ctl.expect("trace --count 1", "forwarded_new -> s1 (id 1) session limited by ticket 00c0ffee... of id 2\n")
	ctl.expect("trace --count 1 --json", `"session":{"outcome":"limited","identity":"ticket","name":"00c0ffee","id":2}`)
}
