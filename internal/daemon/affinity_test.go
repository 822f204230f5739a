package daemon_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
)

// Promise: A load balancer does not take a file by which connections would break because their service's affinity changes, unless somebody has said so.
//
// One that starts does.
func TestAFileWithAnAffinityThatBreaksConnectionsIsRefused(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	cookie := fmt.Sprintf(lbFile, "")
	hash := strings.Replace(cookie, "ports: [80]", "ports: [80], affinity: hash", 1)
	const why = "service web: affinity cookie -> hash: of about 0 connections all break: "
	for range 2 {
		sum := h.write(hash)
		refused := h.await(why, func(s api.LBStatus) bool { return strings.Contains(s.Config.Error, why) })
		if !strings.Contains(refused.Config.Error, "`ballast ctl --instance test config reload --force` takes the file") {
			t.Errorf("the refusal names no way: %s", refused.Config.Error)
		}
		for range 2 { // asked again, and of other losses
			if _, err := h.post(reloadAllowingRemovals, nil); err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("taken, or refused for another reason: %v", err)
			}
		}
		if plan, err := h.post("/v1/dry-run/config/reload", nil); err != nil || !slices.ContainsFunc(plan.Warnings, func(line string) bool { return strings.Contains(line, why) }) {
			t.Errorf("the dry run tells of %+v, %v", plan, err)
		}
		if _, err := h.post(reloadByForce, nil); err != nil {
			t.Errorf("by force: %v", err)
		}
		h.awaitFile(sum)
		if _, err := h.post(reloadByForce, nil); err != nil {
			t.Errorf("by force again: %v", err)
		}
		h.write(cookie)
		h.await("the way back", func(s api.LBStatus) bool { return strings.Contains(s.Config.Error, "affinity hash -> cookie: of ") })
		if _, err := h.post(reloadByForce, nil); err != nil {
			t.Errorf("back by force: %v", err)
		}
	}
	sum := h.write(hash)
	h.await(why, func(s api.LBStatus) bool { return strings.Contains(s.Config.Error, why) })
	h.kill()
	h.start()
	h.awaitFile(sum)
}

// Promise: A load balancer does not take a file by which servers at other addresses take the place of its servers, unless somebody has said so.
func TestAFileWithOtherAddressesForServersIsRefused(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	file := fmt.Sprintf(lbFile, "")
	elsewhere := strings.NewReplacer("10.9.0.2, id: 1", "10.9.0.4, id: 3", "10.9.0.3, id: 2", "10.9.0.5, id: 4").Replace(file)
	const why = "service web: other addresses take the place of 2 of its 2 servers (s1 10.9.0.2 -> 10.9.0.4, s2 10.9.0.3 -> 10.9.0.5): nobody has seen them answer; about 0 connections stay"
	sum := h.write(elsewhere)
	refused := h.await(why, func(s api.LBStatus) bool { return strings.Contains(s.Config.Error, why) })
	if !refused.Ready || !strings.Contains(refused.Config.Error, "`ballast ctl --instance test config reload --force` takes the file") {
		t.Errorf("the refusal names no way: %+v", refused.Config)
	}
	for range 2 { // another yes is not this one
		if _, err := h.post(reloadAllowingRemovals, nil); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("taken, or refused for another reason: %v", err)
		}
	}
	h.expectServers("of the file before", "s1 active", "s2 active")
	if _, err := h.post(reloadByForce, nil); err != nil {
		t.Errorf("by force: %v", err)
	}
	h.awaitFile(sum)
}
