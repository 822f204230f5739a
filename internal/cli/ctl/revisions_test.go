package ctl_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

func TestAFleetIsMadeWhatItWas(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.must("apply", "--yes", "-f", write(t, fleetFile)) // revision 1
		ctl.must("server", "weight", "web", "s1", "5")
		ctl.must("server", "remove", "web", "s2")
		ctl.expect("fleet diff 1", "~ service web: server s1: weight 1 -> 5\n", "- service web: server s2: removed\n")
		ctl.expect("fleet diff 1 2", "weight 1 -> 5")
		ctl.expect("fleet diff 3 3", "no changes")
		ctl.expect("fleet diff 3 1 -o json", `"from": 3,`, `"to": 1,`, "server s2: added")
		ctl.expect("fleet show --revision 1", "s2", "weight: 1")
		output, err := ctl.try("fleet", "rollback", "1", "--dry-run")
		var status command.ExitStatus
		if !errors.As(err, &status) || status != 2 || !strings.Contains(output, "~ service web: server s1: weight 5 -> 1\n+ service web: server s2: added with address 10.0.0.2, id 2") {
			t.Errorf("dry run: %v, %q", err, output)
		}
		ctl.refuse("fleet rollback 1", "say --yes")
		ctl.expect("fleet rollback 1 --yes", "weight 5 -> 1", "applied, revision 4")
		ctl.expect("fleet rollback 1", "no changes")
		ctl.expect("fleet rollback 3 --yes -o json", `"applied": true`)
		ctl.expect("fleet diff 3", "no changes")
		ctl.refuse("fleet rollback 99", "no revision 99")
		ctl.refuse("fleet rollback 0", "no revision")
		ctl.refuse("fleet rollback", "REVISION is missing")
		ctl.refuse("fleet diff -3", "")
		ctl.refuse("fleet show --revision x", "invalid")
	})
}

func TestACommentIsOneLineOfText(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.must("apply", "--yes", "-f", write(t, fleetFile), "--comment", "Zürich: 100 % of s1\u00a0?"[:19])
		for comment, why := range map[string]string{"a\nb": "more than one line", strings.Repeat("x", api.MaxComment+1): "at most 200", "\x1b[2J": "cannot be printed", "\xff": "cannot be printed"} {
			if _, err := ctl.try("server", "weight", "web", "s1", "5", "--comment", comment); err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%q: %v", comment, err)
			}
		}
		ctl.expect("fleet diff 1", "no changes")
	})
}
