// throughput: wrk and iperf3 through Ballast, with and without cookies in turn.
package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"time"
)

const (
	throughputPairs = 3
	iperfPort       = 5201
	plainVIP        = "198.51.100.11"
)

// runThroughput reports what the agent's rewriting costs: the ratio with cookies to without, of medians
// of paired runs on one network.
func runThroughput(s *stage) error {
	const parts = 2 * 2 * throughputPairs // two measures of two services
	length := s.length(parts*3*time.Second) / parts
	with, without := cookieService(vip4), hashService(plainVIP)
	without.Name = "plain"
	for _, one := range []*service{with, without} {
		one.Ports = []uint16{80, iperfPort}
	}
	_, err := s.trial(setup{
		name: "paired", services: []*service{with, without}, topology: Topology{LBs: 1, Servers: make([]ServerNode, 1)},
	}, func(t *trial) error {
		iperf, err := t.start(spawn{node: "s1", program: "iperf3", arguments: []string{"-s"}})
		if err != nil {
			return fmt.Errorf("%w: install iperf3", err)
		}
		listening := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), iperfPort)
		if err := t.awaitPort(t.ctx, iperf, "s1", listening); err != nil {
			return err
		}
		for _, one := range []struct {
			name    string
			measure func(vip string, length time.Duration) (float64, error)
		}{{"bulk_bits_per_second", t.iperf}, {"connections_per_second", t.wrk}} {
			if err := t.pairs(s.result, one.name, length, one.measure); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// pairs measures both services in turn and reports medians and their ratio.
func (t *trial) pairs(result *Result, name string, length time.Duration, measure func(string, time.Duration) (float64, error)) error {
	values := map[string][]float64{}
	for range throughputPairs {
		for _, one := range t.fleet.Services {
			value, err := measure(one.VIP, length)
			if err != nil {
				return err
			}
			t.Progress("%s with affinity %s: %.4g", name, one.Affinity, value)
			values[one.Affinity] = append(values[one.Affinity], value)
		}
	}
	with, without := median(values["cookie"]), median(values["hash"])
	result.measure(name+"_cookie", with)
	result.measure(name+"_plain", without)
	result.measure(name+"_ratio", with/without)
	return nil
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// iperf measures a bulk download in bits per second.
func (t *trial) iperf(vip string, length time.Duration) (float64, error) {
	output, err := t.runClientTool(length, "iperf3", "-J", "-R", "-c", vip, "-t", fmt.Sprint(int(length.Seconds())))
	if err != nil {
		return 0, err
	}
	var report struct {
		End struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(output, &report); err != nil {
		return 0, fmt.Errorf("decode iperf3's report: %w", err)
	}
	return report.End.Received.BitsPerSecond, nil
}

var (
	wrkRate   = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	wrkErrors = regexp.MustCompile(`Socket errors: (.*)`)
)

// wrk measures new connections per second: each request has its own.
func (t *trial) wrk(vip string, length time.Duration) (float64, error) {
	output, err := t.runClientTool(length, "wrk", "-t", "1", "-c", "32", "-d", fmt.Sprintf("%ds", int(length.Seconds())),
		"-H", "Connection: close", "http://"+vip+pathName)
	if err != nil {
		return 0, err
	}
	if broken := wrkErrors.FindSubmatch(output); broken != nil {
		return 0, fmt.Errorf("wrk to %s: socket errors: %s", vip, broken[1])
	}
	rate := wrkRate.FindSubmatch(output)
	if rate == nil {
		return 0, fmt.Errorf("wrk to %s reported no rate: %s", vip, output)
	}
	return strconv.ParseFloat(string(rate[1]), 64)
}

// runClientTool runs a program on the client node to its end.
func (t *trial) runClientTool(length time.Duration, program string, arguments ...string) ([]byte, error) {
	if _, err := exec.LookPath(program); err != nil {
		return nil, fmt.Errorf("measure throughput: %w: install %s", err, program)
	}
	var output bytes.Buffer
	p, err := t.start(spawn{node: clientNode, program: program, arguments: arguments, stdout: &output})
	if err != nil {
		return nil, err
	}
	select {
	case <-p.exited:
	case <-t.ctx.Done():
		return nil, context.Cause(t.ctx)
	case <-time.After(length + 30*time.Second):
		p.kill()
		return nil, fmt.Errorf("%s did not end: %s", program, p.lastWords())
	}
	if p.err != nil {
		return nil, fmt.Errorf("%s: %w: %s%s", program, p.err, p.lastWords(), output.Bytes())
	}
	return output.Bytes(), nil
}
