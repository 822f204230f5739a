package daemon_test

import (
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/daemon/agent"
)

// Promise: `ballast agent --detach` says how many living connections break, and removes nothing unless that is meant; where none lives it does not ask.
func TestAnAgentIsDetachedUnderConnectionsIfThatIsMeant(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newReadyAgent(t)
	conn := h.echo()
	exchange(t, conn)
	h.kill()
	var asked []string
	unmeant := errors.New("it is not meant")
	detach := func() error {
		return h.space.Do(func() error {
			return agent.Detach(agent.Options{RunDir: h.runDir(), Instance: "test", Log: slog.New(slog.DiscardHandler)}, func(harm string) error {
				asked = append(asked, harm)
				return unmeant
			})
		})
	}
	for range 2 {
		if err := detach(); !errors.Is(err, unmeant) {
			t.Errorf("detached under a connection: %v", err)
		}
		exchange(t, conn)
	}
	if want := slices.Repeat([]string{"1 living connection carries a cookie and breaks"}, 2); !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	conn.Close()
	await.Nil(t, "it is detached, as nothing lives", detach)
}
