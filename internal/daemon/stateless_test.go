// Daemons that run by controllers, and have lost their state.
package daemon_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// forwards sends packets for the service until the data path has dispatched one.
func (h *remoteHost) forwards(when string) {
	h.t.Helper()
	dispatched := func() uint64 {
		counters, err := h.client.Counters(h.t.Context())
		require(h.t, err)
		return counters["forwarded_new"]
	}
	before := dispatched()
	for end := time.Now().Add(hostDeadline); dispatched() == before; {
		if time.Now().After(end) {
			counters, _ := h.client.Counters(h.t.Context())
			h.t.Fatalf("%s: nothing is forwarded: %v", when, counters)
		}
		h.peer.Do(func() error {
			if conn, err := net.DialTimeout("tcp", "198.51.100.10:80", 50*time.Millisecond); err == nil {
				conn.Close()
			}
			return nil
		})
	}
}

// programs are the XDP programs that run on the host's link.
func (h *host) programs() (ids []uint32) {
	h.t.Helper()
	require(h.t, h.space.Do(func() error {
		for ifindex := range 16 {
			ids = append(ids, pin.Programs(filepath.Join(h.runDir(), "bpf", "test"), ifindex)...)
		}
		return nil
	}))
	return ids
}

func saysThatItWaits(problems []string) bool {
	return slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, "no state was kept: what an earlier process left") })
}

// Promise: A node by controllers that starts without its state file leaves the data path as it is, and is not
// ready until a controller with services sends a state.
// Also held by TestAnAgentWithoutItsStateTouchesNothingUntilItIsToldOne.
func TestALoadBalancerWithoutItsStateTouchesNothingUntilItIsToldOne(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newRemoteHost(t)
	hub, end := h.control(1)
	hub.Topics.SetState(viewOf(5, nil, 2, 3))
	h.start()
	h.await("the state", func(s api.LBStatus) bool { return s.Ready && s.Revision == 5 })
	require(t, h.peer.Route(netip.MustParsePrefix("198.51.100.10/32"), 0, netspace.NextHop{Gateway: netip.MustParseAddr("10.9.0.1"), Interface: "eth0"}))
	h.forwards("as told")
	h.kill()
	end()
	programs := h.programs()
	if len(programs) == 0 {
		t.Fatal("no program is pinned")
	}
	untouched := func(when string) {
		t.Helper()
		if p := h.programs(); !slices.Equal(p, programs) {
			t.Errorf("%s: programs %v, were %v", when, p, programs)
		}
	}

	state := filepath.Join(h.dir, "state", "test", "state.json")
	content, err := os.ReadFile(state)
	require(t, err)
	if _, found := h.examine(); found["role"] || !found["mtu"] {
		t.Errorf("without a daemon doctor checks %v, not what a load balancer of that state needs", found)
	}
	h.expectProblems("killed", "does not run; the data path that it left")
	for i, damaged := range []string{string(content[:len(content)/2]), "{}", "null"} {
		require(t, os.WriteFile(state, []byte(damaged), 0o600))
		h.start()
		const remedy = "remove the file: the data path goes on as it is until a controller says what to do"
		if err := h.wait(); err == nil || strings.Count(h.output.String(), remedy) != i+1 {
			t.Errorf("the state is %.10s: %v: %s", damaged, err, h.output.String())
		}
		if _, err := h.client.Status(t.Context()); err == nil || !strings.Contains(err.Error(), remedy) {
			t.Errorf("ctl status says %v", err)
		}
		untouched("with a damaged state")
		h.expectProblems("with a damaged state", state+" problem cannot be used", "does not run; the data path that it left")
	}

	require(t, os.Remove(state))
	h.start()
	h.await("the second process", func(s api.LBStatus) bool { return !s.Ready && saysThatItWaits(s.Problems) })
	h.awaitHealth("without a state", http.StatusServiceUnavailable)
	require(t, h.space.AddAddress("eth0", netip.MustParsePrefix("10.9.0.77/24"))) // it follows the network
	empty, endEmpty := h.control(2)
	empty.Topics.SetState(&engine.View{Revision: 2, Keys: viewOf(1, nil).Keys})
	h.await("a controller that knows nothing", func(s api.LBStatus) bool {
		return len(s.Controllers) == 1 && strings.Contains(h.output.String(), "controller knows no service")
	})
	untouched("told by a controller that knows no service")
	h.forwards("told by a controller that knows no service")
	endEmpty()
	h.kill()
	h.start()
	h.await("the third process", func(s api.LBStatus) bool { return !s.Ready && saysThatItWaits(s.Problems) })
	untouched("started again")
	h.forwards("started again")

	hub, end = h.control(1)
	defer end()
	hub.Topics.SetState(viewOf(6, nil, 3))
	h.await("the new state", func(s api.LBStatus) bool { return s.Ready && s.Revision == 6 && s.Interfaces["eth0"] != "" })
	h.expectServers("as told", "s3 active")
	if slices.Equal(h.programs(), programs) {
		t.Error("the program is that of an earlier process still")
	}
	h.kill()
	h.start()
	h.await("the state was kept", func(s api.LBStatus) bool { return s.Ready && s.Revision == 6 })
}

// Controllers that were given other keys than the files had.
//
// Promise: A node that moves from a file to controllers with other keys or ids refuses their state and continues
// with its own, with a problem in `status` and `nodes`.
// Also held by TestAnAgentWithoutItsStateTouchesNothingUntilItIsToldOne.
func TestALoadBalancerThatMovesToControllersKeepsItsKeys(t *testing.T) {
	t.Parallel()
	h := newRemoteHost(t)
	h.role = "lb"
	h.write(fmt.Sprintf(lbFile, ""))
	h.start()
	h.await("the load balancer by its file", func(s api.LBStatus) bool { return s.Ready })
	h.kill()
	h.role = "remote-lb"
	hub, end := h.control(1)
	defer end()
	hub.Topics.SetState(viewOf(5, nil, 2, 3))
	h.start()
	h.await("the refusal", func(s api.LBStatus) bool {
		return len(s.Controllers) == 1 && s.Revision == 0 && strings.Contains(s.Config.Error, "keys.placement: it has changed") &&
			strings.Contains(s.Config.Error, "`ballast lb --detach --instance test`")
	})
	h.expectServers("of other keys", "s1 active", "s2 active")
	view := viewOf(6, nil, 2, 3)
	view.Keys = model.Keys{Current: 3, Cookie: map[uint32][16]byte{3: {3}}}
	for i := range view.Keys.Placement {
		view.Keys.Placement[i] = byte(i)
	}
	hub.Topics.SetState(view)
	h.await("the refusal of keys that lack the one in use", func(s api.LBStatus) bool {
		return s.Revision == 0 && strings.Contains(s.Config.Error, "the key in use, of epoch 1, is not among them")
	})
	keys := model.Keys{Placement: view.Keys.Placement, Current: 1,
		Cookie: map[uint32][16]byte{1: {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}}}
	view = viewOf(7, nil, 2, 3) // the file has 1 and 2 for these
	view.Keys = keys
	hub.Topics.SetState(view)
	h.await("the refusal of other ids", func(s api.LBStatus) bool {
		return s.Revision == 0 && strings.Contains(s.Config.Error, "id 2 is that of s2 (10.9.0.3), whose connections may still live")
	})
	view = viewOf(8, nil, 2, 3)
	view.Keys, view.Services[0].Service.Servers[0].ID, view.Services[0].Service.Servers[1].ID = keys, 1, 2
	hub.Topics.SetState(view)
	h.await("the state with its keys", func(s api.LBStatus) bool { return s.Ready && s.Revision == 8 && s.Config.Error == "" })
	view.Revision, view.Keys = 9, model.Keys{Placement: view.Keys.Placement, Current: 2, Cookie: map[uint32][16]byte{2: {2}}}
	hub.Topics.SetState(view)
	h.await("what controllers say from then on", func(s api.LBStatus) bool { return s.Revision == 9 })
}

// expectProblems is what doctor finds, in that order.
func (h *host) expectProblems(when string, want ...string) {
	h.t.Helper()
	problems, _ := h.examine()
	same := len(problems) == len(want)
	for i := range want {
		same = same && strings.Contains(problems[i], want[i])
	}
	if !same {
		h.t.Errorf("%s: doctor finds %q, want %q", when, problems, want)
	}
}

func TestAnAgentWithoutItsStateTouchesNothingUntilItIsToldOne(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newAgentHost(t)
	h.write(strings.NewReplacer("id: 1}", "id: 2}", "id: 2}", "id: 3}").Replace(fmt.Sprintf(agentFile, 1)))
	h.start()
	h.await("the agent", func(s api.AgentStatus) bool { return s.Ready })
	conn := h.echo()
	exchange(t, conn)
	h.kill()
	programs := h.programs()
	h.expectProblems("killed", "does not run; the data path that it left")

	tls := filepath.Join(h.dir, "tls")
	require(t, errors.Join(pki.Init(tls, pki.DefaultAuthorityLife, false), pki.Issue(tls, pki.Request{Role: pki.Controller, Name: "c1"}),
		pki.Issue(tls, pki.Request{Role: pki.Agent, Name: "s2", Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.2")}})))
	h.role = "told-agent"
	h.start()
	alone := h.await("the agent without a state", func(s api.AgentStatus) bool { return !s.Ready && saysThatItWaits(s.Problems) })
	if !strings.Contains(strings.Join(alone.Problems, "\n"), "no controller is connected") || len(alone.Echoes) > 0 {
		t.Errorf("an agent that was told nothing: %+v", alone)
	}
	h.expectProblems("told nothing", "is not ready: no controller has sent yet", "no controller is connected")
	require(t, h.space.AddAddress("eth0", netip.MustParsePrefix("10.9.0.77/24")))
	exchange(t, conn)
	exchange(t, h.dial())
	if p := h.programs(); !slices.Equal(p, programs) {
		t.Errorf("programs %v, were %v", p, programs)
	}

	hub, end := h.control("c1", "10.9.0.1:6443")
	hub.Topics.SetState(viewOf(2, nil, 3))
	h.await("a controller that does not know this server", func(s api.AgentStatus) bool {
		return !s.Ready && slices.ContainsFunc(s.Problems, func(p string) bool {
			return strings.Contains(p, "know no server by the certificate of this host (s2, of 10.9.0.2): add the server")
		})
	})
	exchange(t, conn)
	if p := h.programs(); !slices.Equal(p, programs) {
		t.Errorf("told nothing of this host: programs %v, were %v", p, programs)
	}
	hub.Topics.SetState(viewOf(3, nil, 2, 3))
	h.await("a state with another key under the epoch that living connections carry", func(s api.AgentStatus) bool {
		return !s.Ready && strings.Contains(s.Config.Error, "has changed under its epoch") && strings.Contains(s.Config.Error, "`ballast agent --detach --instance test`") &&
			slices.ContainsFunc(s.Problems, func(p string) bool { return strings.Contains(p, "the state is refused: what an earlier process left") })
	})
	exchange(t, conn)
	if p := h.programs(); !slices.Equal(p, programs) {
		t.Errorf("told of other keys: programs %v, were %v", p, programs)
	}
	view := viewOf(4, nil, 2, 3)
	view.Keys = model.Keys{Current: 1, Cookie: map[uint32][16]byte{1: {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}}}
	for i := range view.Keys.Placement {
		view.Keys.Placement[i] = byte(i)
	}
	hub.Topics.SetState(view)
	status := h.await("the agent with a state", func(s api.AgentStatus) bool { return s.Ready })
	if !slices.Equal(status.Controllers, []string{"10.9.0.1:6443"}) || status.Revision != 4 || len(status.Problems) > 0 || len(status.Echoes) == 0 {
		t.Errorf("told a state: %+v", status)
	}
	if len(status.Services) != 1 || status.Interfaces["eth0"] == "" || slices.Equal(h.programs(), programs) {
		t.Errorf("told a state: %+v, programs %v, were %v", status, h.programs(), programs)
	}
	exchange(t, conn)
	if bad := h.counters()["ingress_bad_cookie"]; bad != 0 {
		t.Errorf("%d bad cookies", bad)
	}
	end()
	h.await("the loss of the controller", func(s api.AgentStatus) bool {
		return s.Ready && strings.Contains(strings.Join(s.Problems, "\n"), "no controller is connected: the last state goes on")
	})
	h.expectProblems("without the controller", "way back", "reports: no controller is connected: the last state goes on")
}

// Which servers an agent is told of is up to its certificate, and not to --server or its addresses.
func TestAnAgentWhoseCertificateSpeaksForNoServerNamesIt(t *testing.T) {
	t.Parallel()
	h := newAgentHost(t)
	tls := filepath.Join(h.dir, "tls")
	require(t, errors.Join(pki.Init(tls, pki.DefaultAuthorityLife, false), pki.Issue(tls, pki.Request{Role: pki.Controller, Name: "c1"}),
		pki.Issue(tls, pki.Request{Role: pki.Agent, Name: "s2"})))
	h.role = "told-agent"
	hub, end := h.control("c1", "10.9.0.1:6443")
	defer end()
	hub.Topics.SetState(viewOf(3, nil, 3, 4))
	h.start()
	const want = "the controllers know no server by the certificate of this host (s2, without an address)"
	h.await("the reason", func(s api.AgentStatus) bool { return !s.Ready && says(s.NotReady, want) })
	h.awaitNode("the controllers know the reason", hub, func(problems []string) bool { return says(problems, want) })
	h.expectProblems("by that certificate", "is not ready: "+want)
}

// What a controller knows to be wrong with an agent, the agent's own status says as well.
func TestAnAgentsStatusHasTheProblemsThatControllersAreTold(t *testing.T) {
	t.Parallel()
	h := newAgentHost(t)
	tls := filepath.Join(h.dir, "tls")
	require(t, errors.Join(pki.Init(tls, pki.DefaultAuthorityLife, false), pki.Issue(tls, pki.Request{Role: pki.Controller, Name: "c1"}),
		pki.Issue(tls, pki.Request{Role: pki.Agent, Name: "s2", Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.2")}})))
	h.role = "told-agent"
	hub, end := h.control("c1", "10.9.0.1:6443")
	defer end()
	hub.Topics.SetState(viewOf(3, nil, 2, 3))
	h.start()
	const want = "nothing listens on 198.51.100.10:80"
	h.awaitNode("the controllers know that nothing listens", hub, func(problems []string) bool { return says(problems, want) })
	h.await("the agent says so", func(s api.AgentStatus) bool { return s.Ready && says(s.Problems, want) })
}

// Promise: A state file that cannot be written is a problem in `status`, `nodes` and `ballast_state_unsaved`,
// until it can.
func TestAStateThatCannotBeSavedIsAProblemUntilItIs(t *testing.T) {
	t.Parallel()
	h := newRemoteHost(t)
	hub, end := h.control(1)
	hub.Topics.SetState(viewOf(1, nil, 2, 3))
	h.start()
	h.await("the state", func(s api.LBStatus) bool { return s.Ready && s.Revision == 1 })
	dir := filepath.Join(h.dir, "state", "test")
	require(t, os.Rename(dir, dir+".away"))
	require(t, os.WriteFile(dir, nil, 0o600)) // root could write anywhere else
	hub.Topics.SetState(viewOf(2, nil, 2))
	unsaved := func(problems []string) bool {
		return slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, "the state is not saved") })
	}
	h.await("the problem", func(s api.LBStatus) bool { return s.Ready && s.Revision == 2 && unsaved(s.Problems) })
	h.awaitNode("the controllers know", hub, unsaved)
	require(t, os.Remove(dir))
	require(t, os.Rename(dir+".away", dir))
	h.await("the end of the problem", func(s api.LBStatus) bool { return !unsaved(s.Problems) })
	h.awaitNode("the controllers know the end", hub, func(problems []string) bool { return !unsaved(problems) })
	h.kill()
	end()
	h.start()
	h.await("what was saved late", func(s api.LBStatus) bool { return s.Revision == 2 })
}

// awaitNode waits for what a controller knows of the problems of its only node.
func (h *host) awaitNode(what string, hub *hub.Hub, done func(problems []string) bool) {
	h.t.Helper()
	await.Nil(h.t, what, func() error {
		nodes := hub.Nodes.List()
		if len(nodes) != 1 || !done(nodes[0].Problems) {
			return fmt.Errorf("nodes are %v", nodes)
		}
		return nil
	})
}
