package daemon_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// The CPU time of an agent with a controller and without traffic, by whether a policy goes by its reports of load.
func TestCostOfAnIdleAgent(t *testing.T) {
	if os.Getenv("BALLAST_BENCH") == "" {
		t.Skip("measures: set BALLAST_BENCH=1")
	}
	const during = 30 * time.Second
	h := newAgentHost(t)
	tls := filepath.Join(h.dir, "tls")
	require(t, errors.Join(pki.Init(tls, pki.DefaultAuthorityLife, false), pki.Issue(tls, pki.Request{Role: pki.Controller, Name: "c1"}),
		pki.Issue(tls, pki.Request{Role: pki.Agent, Name: "s2", Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.2")}})))
	h.role = "told-agent"
	h.start()
	controller, end := h.control("c1", "10.9.0.1:6443")
	defer end()
	var costs []time.Duration
	for i, dispatch := range []model.Dispatch{model.DispatchRR, model.DispatchAWFD} {
		view := viewOf(uint64(i+1), nil, 2, 3)
		view.Services[0].Service.Dispatch = dispatch
		controller.Topics.SetState(view)
		h.await(fmt.Sprint("dispatch ", dispatch), func(s api.AgentStatus) bool { return s.Ready && s.Revision == uint64(i+1) })
		before := cpuTime(t, h.process.Process.Pid)
		time.Sleep(during)
		costs = append(costs, cpuTime(t, h.process.Process.Pid)-before)
		t.Logf("dispatch %v: %.2f %% of a core", dispatch, 100*costs[i].Seconds()/during.Seconds())
	}
	t.Logf("awfd : rr = %.2f", float64(costs[1])/float64(costs[0]))
}

// cpuTime is what all threads of a process have used (schedstat in Documentation/scheduler/sched-stats.rst).
func cpuTime(t *testing.T, pid int) (used time.Duration) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	require(t, err)
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			continue // it has ended
		}
		ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		require(t, err)
		used += time.Duration(ns)
	}
	return used
}
