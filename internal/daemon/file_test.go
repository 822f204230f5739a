package daemon_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/await"
)

const reloadByForce = "/v1/config/reload?" + api.Force + "=true"

// A load balancer that began with the wrong key, or with ids that are swapped, is put right by the command that the refusal names, also after a
// restart, which goes on with what it had.
func TestALoadBalancerTakesAFileThatBreaksConnectionsByForceAlone(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	file := fmt.Sprintf(lbFile, "")
	for what, right := range map[string]string{
		"the key of an epoch in use has changed": strings.Replace(file, "00112233", "ffffffff", 1),
		"the key in use, of epoch 1, is not":     strings.NewReplacer("current: 1", "current: 2", "{1: 0011", "{2: 0011").Replace(file),
		"whose connections may still live":       strings.NewReplacer("id: 1", "id: 2", "id: 2", "id: 1").Replace(file),
	} {
		sum := h.write(right)
		refused := h.await(what, func(s api.LBStatus) bool { return strings.Contains(s.Config.Error, what) })
		if !strings.Contains(refused.Config.Error, "`ballast ctl --instance test config reload --force`") {
			t.Errorf("the refusal names no way: %s", refused.Config.Error)
		}
		if _, err := h.post("/v1/config/reload", nil); err == nil {
			t.Error("it was taken without force")
		}
		h.kill()
		h.start()
		h.await(what+" after a restart", func(s api.LBStatus) bool { return s.Ready && strings.Contains(s.Config.Error, what) })
		if answer, err := h.post(reloadByForce, nil); err != nil || len(answer.Changes) == 0 {
			t.Errorf("force says %q, %v", answer.Changes, err)
		}
		h.awaitFile(sum)
		h.kill()
		h.start()
		h.awaitFile(sum)
		h.expectServers("after force", "s1 active", "s2 active")
		h.write(file)
		h.await("the refusal of the way back", func(s api.LBStatus) bool { return s.Config.Error != "" })
		if _, err := h.post(reloadByForce, nil); err != nil {
			t.Error(err)
		}
	}
	await.True(t, "the log", func() bool {
		log := h.output.String()
		return strings.Contains(log, "read by force") && strings.Count(log, "the configuration is in order again") == 6
	})
}

// The way back from a rotation by ctl is as hard as any other loss of the key in use.
func TestAResetThatLosesTheKeyInUseNeedsForce(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	fleet := h.client.Fleet()
	_, err := fleet.AddKey(t.Context(), &ballastv1.AddKeyRequest{})
	require(t, err)
	_, err = fleet.UseKey(t.Context(), &ballastv1.KeyRequest{Epoch: 2})
	require(t, err)
	if _, err := h.post("/v1/config/reset", nil); err == nil || !strings.Contains(err.Error(), "`ballast ctl --instance test config reset --force`") {
		t.Errorf("the reset is taken, or names no way: %v", err)
	}
	keys, err := fleet.ListKeys(t.Context(), &ballastv1.ListKeysRequest{})
	if err != nil || keys.Current != 2 {
		t.Errorf("after the refusal: %v, %v", keys, err)
	}
	if answer, err := h.post("/v1/config/reset?"+api.Force+"=true", nil); err != nil || !slices.Contains(answer.Changes, "keys: current 2 -> 1") {
		t.Errorf("force says %q, %v", answer.Changes, err)
	}
}

// The state of a load balancer that was off for long may be older than what all others forward by.
func TestALoadBalancerWhoseFileIsRefusedAfterARebootIsNotReady(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	h.kill()
	require(t, h.remove("test"))
	sum := h.write(strings.Replace(fmt.Sprintf(lbFile, ""), "00112233", "ffffffff", 1))
	h.start()
	h.await("what keeps it from being ready", func(s api.LBStatus) bool {
		return !s.Ready && s.Config.Error != "" && strings.Contains(strings.Join(s.Problems, "\n"), "of before the last reboot")
	})
	if _, err := h.post(reloadByForce, nil); err != nil {
		t.Error(err)
	}
	h.awaitFile(sum)
	h.await("ready", func(s api.LBStatus) bool { return s.Ready })
}

// What living connections carry is in the maps, which outlive the agent.
func TestAnAgentThatRestartsKeepsTheKeyAndTheIDOfLivingConnections(t *testing.T) {
	t.Parallel()
	h := newAgentHost(t)
	file := fmt.Sprintf(agentFile, 1)
	h.write(file)
	h.start()
	h.await("the agent", func(s api.AgentStatus) bool { return s.Ready })
	conn := h.echo()
	exchange(t, conn)
	for what, change := range map[string]string{
		"has changed under its epoch": strings.Replace(file, "00112233", "ffffffff", 1),
		"carry is not there":          strings.NewReplacer("current: 1", "current: 2", "1: 00112233445566778899aabbccddeeff, ", "").Replace(file),
		"has changed from 1 to 5":     strings.Replace(file, "id: 1}", "id: 5}", 1),
	} {
		h.kill()
		h.write(change)
		h.start()
		refused := h.await(what, func(s api.AgentStatus) bool { return !s.Ready && strings.Contains(s.Config.Error, what) })
		if !strings.Contains(refused.Config.Error, "`ballast ctl --instance test config reload --force`") || strings.Contains(refused.Config.Error, "(0 live") {
			t.Errorf("the refusal names no way, or not what is at stake: %s", refused.Config.Error)
		}
		exchange(t, conn)
		exchange(t, h.dial())
		sum := h.write(file)
		h.await("the old file", func(s api.AgentStatus) bool { return s.Ready && s.Config.SHA256 == sum && s.Config.Error == "" })
		exchange(t, conn)
	}
	if bad := h.counters()["ingress_bad_cookie"]; bad != 0 {
		t.Errorf("%d bad cookies", bad)
	}
	h.kill()
	sum := h.write(strings.Replace(file, "00112233", "ffffffff", 1))
	h.start()
	h.await("the refusal", func(s api.AgentStatus) bool { return s.Config.Error != "" })
	var answer api.Changed
	require(t, h.client.Do(t.Context(), "POST", reloadByForce, nil, &answer))
	if want := []string{"serves web"}; !slices.Equal(answer.Changes, want) {
		t.Errorf("force says %q, want %q", answer.Changes, want)
	}
	h.await("force", func(s api.AgentStatus) bool { return s.Ready && s.Config.SHA256 == sum && s.Config.Error == "" })
	if !strings.Contains(h.output.String(), "the configuration is in order again") {
		t.Error("the log does not say that the file is in order again")
	}
}

func TestAnAgentThatStartsWithTheFileOfAnotherFleetTouchesNothing(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newAgentHost(t)
	h.write(fmt.Sprintf(agentFile, 1) + "tunnels_from: [10.9.0.1]\n")
	h.start()
	h.await("the agent", func(s api.AgentStatus) bool { return s.Ready })
	conn := h.echo()
	exchange(t, conn)
	h.kill()
	h.write(strings.NewReplacer("00112233", "ffffffff", "ffeeddcc", "eeeeeeee", "198.51.100.10", "198.51.100.99", "10.9.0.2", "10.9.0.98", "10.9.0.3", "10.9.0.99").
		Replace(fmt.Sprintf(agentFile, 1)) + "tunnels_from: [10.9.0.77]\n")
	h.start()
	h.await("the refusal", func(s api.AgentStatus) bool {
		return !s.Ready && strings.Contains(s.Config.Error, "none of the services that living connections are of, and not their key") &&
			strings.Contains(s.Config.Error, "`ballast ctl --instance test config reload --force`")
	})
	exchange(t, conn)
	exchange(t, h.dial())
	h.expectTunnel("the file is of another fleet", "10.9.0.1", "decapsulated")
	h.expectTunnel("the file is of another fleet", "10.9.0.77", "dropped_foreign_source")
	var answer api.Changed
	require(t, h.client.Do(t.Context(), "POST", reloadByForce, nil, &answer))
	h.expectTunnel("by force", "10.9.0.77", "decapsulated")
}

// Nobody is harmed: no connection lives.
func TestAnAgentWithoutConnectionsTakesWhateverFileItStartsWith(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newAgentHost(t)
	file := fmt.Sprintf(agentFile, 1)
	h.write(file)
	h.start()
	h.await("the agent", func(s api.AgentStatus) bool { return s.Ready })
	h.kill()
	sum := h.write(strings.Replace(file, "00112233", "ffffffff", 1))
	h.start()
	h.await("the other key", func(s api.AgentStatus) bool { return s.Ready && s.Config.SHA256 == sum })
}
