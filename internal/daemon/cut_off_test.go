package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
)

const reloadAllowingRemovals = "/v1/config/reload?" + api.AllowRemove + "=true"

// everyService is said of a load balancer's file without any where it knows that no connection lives.
const everyService = "every service goes"

// cutOff are files that a whole one becomes when it is written in part, and what is said of them.
func cutOff(whole, empty string) map[string]string {
	line := strings.LastIndex(whole, ", {name: s2")
	return map[string]string{
		whole[:line] + "]}\n": "service web: 1 of its 2 servers that take new connections go",
		whole[:strings.Index(whole, "services:")] + "services: []\n": empty,
	}
}

// writeInPlace writes a file in two steps, as editors and copies do.
func (h *host) writeInPlace(content string) {
	h.t.Helper()
	file, err := os.Create(filepath.Join(h.dir, "ballast.yaml"))
	require(h.t, err)
	for _, part := range []string{content[:len(content)/2], content[len(content)/2:]} {
		_, err := file.WriteString(part)
		require(h.t, err)
	}
	require(h.t, file.Close())
}

// Promise: A daemon does not take a file, read because it changed, that has lost a service or more than a third of a service's servers, and says since when.
//
// It may be half of one: what runs stays, and status and the log say how to say that it is meant.
func TestAFileThatIsCutOffDoesNotRun(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	whole := fmt.Sprintf(lbFile, "")
	for half, why := range cutOff(whole, everyService) {
		h.writeInPlace(half)
		refused := h.await(why, func(s api.LBStatus) bool { return strings.Contains(s.Config.Error, why) })
		if !strings.Contains(refused.Config.Error, "is it whole?") || !strings.Contains(refused.Config.Error, "`ballast ctl --instance test config reload --allow-remove` takes it") {
			t.Errorf("the refusal names no way: %s", refused.Config.Error)
		}
		if !refused.Ready || refused.Config.RefusedSince == nil || refused.Config.SHA256 == "" {
			t.Errorf("what runs is not told: %+v", refused.Status)
		}
		h.expectServers("after "+why, "s1 active", "s2 active")
		if !strings.Contains(h.metrics(), "ballast_config_refused 1\n") {
			t.Error("the metric does not tell of it")
		}
		for range 3 { // whoever writes it again, or asks without the yes, has said nothing new
			h.write(half)
			if _, err := h.post("/v1/config/reload", nil); err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("asked to read it again: %v", err)
			}
			if _, err := h.post(reloadByForce, nil); err == nil || !strings.Contains(err.Error(), "config reload --force --allow-remove`") {
				t.Errorf("force has taken it, or names no way: %v", err)
			}
		}
		again := h.await("the same", func(s api.LBStatus) bool { return s.Config.Error != "" })
		if !again.Config.RefusedSince.Equal(*refused.Config.RefusedSince) {
			t.Errorf("it was refused since %s, and now since %s", refused.Config.RefusedSince, again.Config.RefusedSince)
		}
		if plan, err := h.post(strings.Replace("/v1/config/reload", "/v1/", "/v1/dry-run/", 1), nil); err != nil || !slices.ContainsFunc(plan.Warnings, func(line string) bool { return strings.Contains(line, why) }) {
			t.Errorf("the dry run tells of %+v, %v", plan, err)
		}
		h.awaitFile(h.write(whole))
		if now := h.await("no refusal", func(s api.LBStatus) bool { return s.Config.Error == "" }); now.Config.RefusedSince != nil {
			t.Errorf("the file is right, and refused since %s", now.Config.RefusedSince)
		}
		h.expectServers("with the whole file", "s1 active", "s2 active")
	}
	for half, why := range cutOff(whole, everyService) {
		sum := h.write(half)
		h.await(why, func(s api.LBStatus) bool { return strings.Contains(s.Config.Error, why) })
		if answer, err := h.post(reloadAllowingRemovals, nil); err != nil || len(answer.Changes) == 0 {
			t.Errorf("with the yes it says %q, %v", answer.Changes, err)
		}
		h.awaitFile(sum)
		h.awaitFile(h.write(whole))
	}
	await.True(t, "the log", func() bool {
		log := h.output.String()
		return strings.Contains(log, "the old state is kept") && strings.Count(log, "the configuration is in order again") == 4
	})
}

// Promise: A daemon that starts takes its file as it is: people start it by what they have written.
func TestADaemonStartsByTheFileThatIsThere(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	for half, why := range cutOff(fmt.Sprintf(lbFile, ""), everyService) {
		sum := h.write(half)
		h.await(why, func(s api.LBStatus) bool { return strings.Contains(s.Config.Error, why) })
		h.kill()
		h.start()
		h.awaitFile(sum)
		h.awaitFile(h.write(fmt.Sprintf(lbFile, "")))
	}
}

// Promise: An agent goes on marking for a service that its file has lost, until somebody says that the loss is meant.
func TestAnAgentGoesOnMarkingWhatItsFileHasLost(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newAgentHost(t)
	whole := fmt.Sprintf(agentFile, 1)
	h.write(whole)
	h.start()
	h.await("the agent", func(s api.AgentStatus) bool { return s.Ready })
	conn := h.echo()
	exchange(t, conn)
	for half, why := range cutOff(whole, "service web goes, with connections that nobody counts") {
		h.writeInPlace(half)
		refused := h.await(why, func(s api.AgentStatus) bool { return s.Ready && strings.Contains(s.Config.Error, why) })
		if refused.Config.RefusedSince == nil || !slices.Equal(refused.Services, []string{"web"}) {
			t.Errorf("it serves %q, refused since %v", refused.Services, refused.Config.RefusedSince)
		}
		exchange(t, conn)
		marked := h.counters()["egress_marked_syn_ack"]
		exchange(t, h.dial())
		if now := h.counters()["egress_marked_syn_ack"]; now <= marked {
			t.Errorf("%d new connections are marked", now-marked)
		}
		sum := h.write(whole)
		h.await("the whole file", func(s api.AgentStatus) bool { return s.Config.SHA256 == sum && s.Config.Error == "" })
	}
	for half, why := range cutOff(whole, "service web goes, with connections that nobody counts") {
		sum := h.write(half)
		h.await(why, func(s api.AgentStatus) bool { return strings.Contains(s.Config.Error, why) })
		require(t, h.client.Do(t.Context(), "POST", reloadAllowingRemovals, nil, &api.Changed{}))
		h.await("the yes", func(s api.AgentStatus) bool { return s.Config.SHA256 == sum && s.Config.Error == "" })
		exchange(t, conn)
		sum = h.write(whole)
		h.await("the whole file", func(s api.AgentStatus) bool { return s.Config.SHA256 == sum && s.Config.Error == "" })
	}
}
