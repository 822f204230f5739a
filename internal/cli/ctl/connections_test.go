package ctl_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/clitest"
)

// connectionsDaemon serves a table whose one connection sends 1000 packets of 60 bytes between two looks.
func connectionsDaemon(t *testing.T) (socket string, asked *api.ConnectionQuery) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "ctl.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	asked = &api.ConnectionQuery{}
	packets := uint32(0)
	server := api.NewServer()
	server.Handle("GET "+api.PathConnections, func(r *http.Request) (any, error) {
		var err error
		if *asked, err = api.ParseConnectionQuery(r.URL.Query()); err != nil {
			return nil, err
		}
		packets += 1000
		counts := api.ConnectionCounts{Open: 1, Suspects: 1, Packets: uint64(packets), Bytes: 60 * uint64(packets)}
		return api.Connections{Node: "lb1", Matched: 7, Connections: []api.Connection{{
			Service: "web", Server: "s1", ID: 1, Client: netip.MustParseAddrPort("203.0.113.7:1024"), State: "open", Suspect: true,
			Packets: packets, Bytes: 60 * uint64(packets), Age: 61, Idle: 0.02, Entry: 65,
		}}, Tables: []api.ConnectionTable{{Service: "web", Entries: 63, Used: 1, Free: 60, Ended: 2, ConnectionCounts: counts,
			Servers: []api.ServerConnections{{Server: "s1", ID: 1, ConnectionCounts: counts}}}}}, nil
	})
	go server.Serve(t.Context(), listener)
	return socket, asked
}

func TestConnectionsAreAskedForAndShown(t *testing.T) {
	socket, asked := connectionsDaemon(t)
	output, err := clitest.Run("ctl", "--socket", socket, "connections", "--service", "web", "--server", "s1", "--client", "203.0.113.9/24", "--state", "open",
		"--suspects-only", "--min-packets", "5", "--min-bytes", "7", "--min-age", "1m30s", "--min-idle", "20ms", "--sort", "idle", "--top", "3")
	want := api.ConnectionQuery{Service: "web", Server: "s1", Client: netip.MustParsePrefix("203.0.113.0/24"), State: "open", Suspects: true, MinPackets: 5, MinBytes: 7,
		MinAge: 90, MinIdle: 0.02, Sort: "idle", Limit: 3}
	if err != nil || *asked != want {
		t.Errorf("asked %+v, not %+v; %v", *asked, want, err)
	}
	for _, line := range []string{"web s1 0 1 0 0 1 1000 60.0k", "service web: 1 of 63 entries used, 60 free, 2 of connections that have ended",
		"1 of 7 connections, as node lb1 sees them", "web s1 203.0.113.7:1024 open, suspect 1000 60.0k 1m1s 20ms"} {
		if !strings.Contains(strings.Join(strings.Fields(output), " "), line) {
			t.Errorf("missing %q in\n%s", line, output)
		}
	}
}

func TestTheFirstTierIsSaidToHaveNoTables(t *testing.T) {
	for body, want := range map[string]string{
		`{"node":"lb1","tables":[],"second_tier":["shop","web"]}`: "node lb1 is of the first tier: the connections of service shop, web are in the tables of the second: ask its nodes\n",
		`{"node":"lb1","tables":[]}`:                              "node lb1 keeps no connection table: no service has affinity table here\n",
	} {
		socket, _ := daemonThatSays(t, "application/json", []byte(body))
		if output, err := clitest.Run("ctl", "--socket", socket, "connections"); err != nil || output != want {
			t.Errorf("%v: %q, not %q", err, output, want)
		}
	}
}

func TestAWatchShowsRatesSinceTheLookBefore(t *testing.T) {
	socket, _ := connectionsDaemon(t)
	began := time.Now()
	output, err := clitest.Run("ctl", "--socket", socket, "connections", "--watch", "--interval", "50ms", "--count", "2", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var looks [2]struct {
		Node        string
		Connections []struct {
			Packets uint32
			Rate    *float64 `json:"packets_per_second"`
			Bytes   *float64 `json:"bytes_per_second"`
		}
	}
	decoder := json.NewDecoder(strings.NewReader(output))
	for i := range looks {
		if err := decoder.Decode(&looks[i]); err != nil {
			t.Fatal(err, output)
		}
	}
	slowest := 1000 / time.Since(began).Seconds()
	first, second := looks[0].Connections[0], looks[1].Connections[0]
	if looks[0].Node != "lb1" || first.Rate != nil || second.Rate == nil || *second.Rate < slowest || math.Abs(*second.Bytes / *second.Rate - 60) > 0.001 {
		t.Errorf("looks: %s", output)
	}
	shown, err := atTerminal(t, "", "ctl", "--socket", socket, "connections", "--watch", "--count", "1")
	if err != nil || !strings.Contains(shown, "\033[H\033[2J") || !strings.Contains(shown, "PACKETS/S") {
		t.Errorf("%v: %q", err, shown)
	}
}

func TestSuspectsAreSetClearedAndListed(t *testing.T) {
	socket, asked := daemonThatSays(t, "application/json", []byte(`{"changes":["done"]}`))
	for line, want := range map[string]struct {
		method string
		body   api.Suspect
	}{
		"suspect --service web --client 203.0.113.7 --for 10m": {"POST", api.Suspect{Service: "web", Client: netip.MustParsePrefix("203.0.113.7/32"), For: 600}},
		"suspect --service web --client 2001:db8::1/48":        {"POST", api.Suspect{Service: "web", Client: netip.MustParsePrefix("2001:db8::/48")}},
		"clear --service web --client 203.0.113.0/24":          {"DELETE", api.Suspect{Service: "web", Client: netip.MustParsePrefix("203.0.113.0/24")}},
	} {
		output, err := clitest.Run(append([]string{"ctl", "--socket", socket, "connections"}, strings.Fields(line)...)...)
		request, body := asked()
		var got api.Suspect
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		if err != nil || output != "done\n" || request != want.method+" "+api.PathSuspects || !reflect.DeepEqual(got, want.body) {
			t.Errorf("%s: asked %s %+v, printed %q, %v", line, request, got, output, err)
		}
	}
	socket, _ = daemonThatSays(t, "application/json", []byte(`[{"service":"web","client":"203.0.113.0/24"},{"service":"web","client":"203.0.113.7/32","until":"2026-01-31T23:00:00Z"}]`))
	output, err := clitest.Run("ctl", "--socket", socket, "connections", "suspects")
	if got := fmt.Sprint(strings.Fields(output)); err != nil || got != "[SERVICE CLIENT UNTIL web 203.0.113.0/24 cleared web 203.0.113.7/32 2026-01-31T23:00:00Z]" {
		t.Errorf("%v: %s", err, output)
	}
}

func TestWhatMakesNoSenseAboutConnectionsIsRefused(t *testing.T) {
	for line, want := range map[string]string{
		"connections --client there":                              "neither an address",
		"connections --client fe80::1%eth0":                       "leave out the zone",
		"connections --top 0":                                     "use 1 to",
		"connections --count 3":                                   "give both",
		"connections --interval 0s":                               "use 10ms or more",
		"connections --interval 5s":                               "give both",
		"connections --watch --count -3":                          "use 1 or more",
		"connections --min-age -1h":                               "use 0 or more",
		"connections --min-idle -1ns":                             "use 0 or more",
		"connections --client ::ffff:10.0.0.0/24":                 "96 bits or more",
		"connections suspect --service web":                       `"client" not set`,
		"connections suspect --service web --client ::1 --for 1s": "reach the daemon",
		"connections suspect --service web --client ::1 --for 0s": "a second or more",
		"--controller c1 connections":                             "of one node only",
	} {
		if _, err := clitest.Run(append([]string{"ctl", "--socket", "/nowhere"}, strings.Fields(line)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, which does not say %q", line, err, want)
		}
	}
	for line, want := range map[string]string{"--max-entries 0": "--max-entries 0: use 64 to", "--max-local 0": "use 1 or more"} {
		if _, err := clitest.Run(append([]string{"lb", "-f", "/nowhere"}, strings.Fields(line)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, which does not say %q", line, err, want)
		}
	}
}
