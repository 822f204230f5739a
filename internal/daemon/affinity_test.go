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
