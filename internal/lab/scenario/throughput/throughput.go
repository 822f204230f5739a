// Package throughput measures with wrk and iperf3 through Ballast, with and without cookies in turn.
package throughput

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/software"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "throughput", Deadline: 3 * time.Minute, Do: runThroughput,
		Promise: "wrk and iperf3 work; what cookies cost is reported, not judged",
	},
}

const (
	throughputPairs = 3
	iperfPort       = 5201
	plainVIP        = "198.51.100.11"
)

// runThroughput reports what the agent's rewriting costs: the ratio with cookies to without, of medians
// of paired runs on one network.
func runThroughput(run *scenario.Run) {
	const parts = 2 * 2 * throughputPairs // two measures of two services
	length := run.Length(parts*3*time.Second) / parts
	with, without := scenario.CookieService(scenario.VIP4), scenario.HashService(plainVIP)
	without.Name = "plain"
	for _, one := range []*fleet.Service{with, without} {
		one.Ports = []uint16{80, iperfPort}
	}
	run.Result.AddTrial(run.Uncounted(world.Setup{
		Name: "paired", Services: []*fleet.Service{with, without}, Topology: world.Topology{LBs: 1, Servers: make([]world.ServerNode, 1)},
	}, func(t *world.Trial) {
		listens := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), iperfPort)
		software.Program{Node: "s1", Name: "iperf3", Arguments: []string{"-s"}, Listens: listens}.Start(t.Lab)
		for _, one := range []struct {
			name    string
			measure func(t *world.Trial, vip string, length time.Duration) float64
		}{{"bulk_bits_per_second", iperf}, {"connections_per_second", wrk}} {
			pairs(t, run.Result, one.name, length, one.measure)
		}
	}), false)
}

// pairs measures both services in turn and reports medians and their ratio.
func pairs(t *world.Trial, result *scenario.Result, name string, length time.Duration, measure func(*world.Trial, string, time.Duration) float64) {
	values := map[string][]float64{}
	for range throughputPairs {
		for _, one := range t.Fleet.Services {
			value := measure(t, one.VIP.String(), length)
			t.Lab.Progress("%s with affinity %s: %.4g", name, one.Affinity, value)
			values[one.Affinity.String()] = append(values[one.Affinity.String()], value)
		}
	}
	with, without := scenario.Median(values["cookie"]), scenario.Median(values["hash"])
	result.Measure(name+"_cookie", with)
	result.Measure(name+"_plain", without)
	result.Measure(name+"_ratio", with/without)
}

// iperf measures a bulk download in bits per second.
func iperf(t *world.Trial, vip string, length time.Duration) float64 {
	output := runClientTool(t, length, "iperf3", "-J", "-R", "-c", vip, "-t", fmt.Sprint(int(length.Seconds())))
	var report struct {
		End struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	script.Checkf(json.Unmarshal(output, &report), "decode iperf3's report")
	return report.End.Received.BitsPerSecond
}

var (
	wrkRate   = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	wrkErrors = regexp.MustCompile(`Socket errors: (.*)`)
)

// wrk measures new connections per second: each request has its own.
func wrk(t *world.Trial, vip string, length time.Duration) float64 {
	output := runClientTool(t, length, "wrk", "-t", "1", "-c", "32", "-d", fmt.Sprintf("%ds", int(length.Seconds())),
		"-H", "Connection: close", "http://"+vip+world.PathName)
	if broken := wrkErrors.FindSubmatch(output); broken != nil {
		script.Check(fmt.Errorf("wrk to %s: socket errors: %s", vip, broken[1]))
	}
	rate := wrkRate.FindSubmatch(output)
	if rate == nil {
		script.Check(fmt.Errorf("wrk to %s reported no rate: %s", vip, output))
	}
	return script.Must(strconv.ParseFloat(string(rate[1]), 64))
}

// runClientTool runs a program on the client node to its end.
func runClientTool(t *world.Trial, length time.Duration, program string, arguments ...string) []byte {
	var output bytes.Buffer
	p := software.Program{Node: world.ClientNode, Name: program, Arguments: arguments, Stdout: &output}.Start(t.Lab)
	defer time.AfterFunc(length+30*time.Second, p.Kill).Stop()
	p.Finish()
	return output.Bytes()
}
