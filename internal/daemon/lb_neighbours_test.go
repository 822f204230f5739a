package daemon_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
)

// keptNeighbours are those that the kernel keeps resolved for us in the host's namespace.
func (h *host) keptNeighbours() (kept []string) {
	h.t.Helper()
	require(h.t, h.space.Do(func() error {
		out, err := exec.Command("ip", "neigh", "show", "proto", "181").Output()
		for _, line := range strings.Split(string(out), "\n") {
			if fields := strings.Fields(line); slices.Contains(fields, "managed") && slices.Contains(fields, "extern_learn") {
				kept = append(kept, fields[0])
			}
		}
		return err
	}))
	slices.Sort(kept)
	return kept
}

func (h *host) awaitKept(when string, want ...string) {
	h.t.Helper()
	await.Nil(h.t, "kept neighbours "+when, func() error {
		if kept := h.keptNeighbours(); !slices.Equal(kept, want) {
			return fmt.Errorf("they are %v, want %v", kept, want)
		}
		return nil
	})
}

func TestNextHopsAreKeptResolvedUntilDetach(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.with("")
	h.start()
	h.await("the load balancer", func(s api.LBStatus) bool { return s.Ready })
	h.awaitKept("of a load balancer", "10.9.0.2", "10.9.0.3")
	h.awaitFile(h.with(", {name: s3, address: 10.9.0.4, id: 3}"))
	h.awaitKept("with another server", "10.9.0.2", "10.9.0.3", "10.9.0.4")
	require(t, h.space.Do(func() error { // as doctor does
		_, err := netdev.NewResolver().Lookup(netip.MustParseAddr("10.9.0.9"))
		if !errors.Is(err, netdev.ErrUnresolved) {
			return fmt.Errorf("10.9.0.9: %v", err)
		}
		return netdev.ReleaseNeighbours() // as another instance's --detach does
	}))
	h.awaitKept("after another instance was detached", "10.9.0.2", "10.9.0.3", "10.9.0.4")
	h.kill()
	h.awaitKept("of a process that was killed", "10.9.0.2", "10.9.0.3", "10.9.0.4")
	require(t, h.remove("test"))
	h.awaitKept("after --detach")
}
