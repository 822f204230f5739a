package agent

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/netspace"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// trackingHost is a host whose rules tests change.
type trackingHost struct {
	*testing.T
	space *netspace.Space
}

func newTrackingHost(t *testing.T) *trackingHost {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nftables:", err)
	}
	name := fmt.Sprintf("ballast-tracking-%d", os.Getpid())
	space, err := netspace.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		space.Close()
		if err := netspace.Remove(name); err != nil {
			t.Error(err)
		}
	})
	return &trackingHost{t, space}
}

func (h *trackingHost) do(fn func()) {
	h.Helper()
	if err := h.space.Do(func() error { fn(); return nil }); err != nil {
		h.Fatal(err)
	}
}

// nft runs nft with these rules, or lists what there is.
func (h *trackingHost) nft(rules string) (list string) {
	h.Helper()
	h.do(func() {
		command := exec.Command("nft", "-f", "-")
		if command.Stdin = strings.NewReader(rules); rules == "" {
			command = exec.Command("nft", "list", "ruleset")
		}
		out, err := command.CombinedOutput()
		if err != nil {
			h.Errorf("nft: %v: %s", err, out)
		}
		list = string(out)
	})
	return list
}

func sessionServices(ports ...uint16) []plan.AgentService {
	return []plan.AgentService{
		{Service: &model.Service{Name: "web", VIP: netip.MustParseAddr("198.51.100.10"), Ports: ports}},
		{Service: &model.Service{Name: "web6", VIP: netip.MustParseAddr("2001:db8::10"), Ports: ports}},
	}
}

const othersTable = "table inet others {\n\tchain c {\n\t\ttype nat hook postrouting priority srcnat; policy accept;\n\t\tip saddr 172.17.0.0/16 masquerade\n\t}\n}\n"

func TestTheTableOfUntrackedServicesFollowsThemAndComesBackAfterAFlush(t *testing.T) {
	h := newTrackingHost(t)
	h.nft(othersTable)
	mine := newTracking("one", false, slog.New(slog.DiscardHandler))
	h.do(func() { mine.set(sessionServices(443, 8443)) })
	for _, want := range []string{"table inet ballast_one", "198.51.100.10 . 443", "198.51.100.10 . 8443", "2001:db8::10 . 443", "notrack", othersTable} {
		if list := h.nft(""); !strings.Contains(list, want) {
			t.Errorf("%q is not in %s", want, list)
		}
	}
	h.nft("flush ruleset\n" + othersTable)
	h.do(mine.follow)
	if list := h.nft(""); !strings.Contains(list, "198.51.100.10 . 443") {
		t.Errorf("after a flush there is %s", list)
	}
	h.nft("delete rule inet ballast_one output handle " + handleOf(h, "ballast_one"))
	h.do(mine.follow)
	if list := h.nft(""); strings.Count(list, "notrack") != 4 {
		t.Errorf("after a rule was removed there is %s", list)
	}
	next := newTracking("one", false, slog.New(slog.DiscardHandler)) // a process that takes over
	h.do(func() { next.set(sessionServices(443)) })
	if list := h.nft(""); strings.Contains(list, "8443") || !slices.Equal(next.there, []netip.AddrPort{
		netip.MustParseAddrPort("198.51.100.10:443"), netip.MustParseAddrPort("[2001:db8::10]:443")}) {
		t.Errorf("of one port %v: %s", next.there, list)
	}
	if problems := next.problems(); len(problems) != 0 {
		t.Error(problems)
	}
	h.do(func() {
		if err := newTracking("one", false, slog.New(slog.DiscardHandler)).leave(); err != nil {
			t.Error(err)
		}
	})
	if list := h.nft(""); list != othersTable {
		t.Errorf("after it left there is %s", list)
	}
}

// handleOf is that of a rule of the table's chain output.
func handleOf(h *trackingHost, table string) (handle string) {
	h.Helper()
	h.do(func() {
		out, err := exec.Command("nft", "-a", "list", "chain", "inet", table, "output").CombinedOutput()
		if err != nil {
			h.Errorf("nft: %v: %s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if _, number, found := strings.Cut(line, "notrack # handle "); found {
				handle = strings.TrimSpace(number)
			}
		}
	})
	return handle
}

func TestAnAgentThatKeepsTrackingMakesNoTableAndNamesTheTranslation(t *testing.T) {
	h := newTrackingHost(t)
	before := newTracking("one", false, slog.New(slog.DiscardHandler))
	h.do(func() { before.set(sessionServices(443)) })
	keeps := newTracking("one", true, slog.New(slog.DiscardHandler))
	h.do(func() { keeps.set(sessionServices(443)) })
	if list := h.nft(""); list != "" || len(keeps.there) != 0 {
		t.Errorf("of %v there is %s", keeps.there, list)
	}
	if problems := keeps.problems(); len(problems) != 0 {
		t.Errorf("without translation: %v", problems)
	}
	h.nft(othersTable)
	h.do(keeps.follow)
	if problems := keeps.problems(); len(problems) != 1 || !strings.Contains(problems[0], "chain c of table others") {
		t.Errorf("with translation: %v", problems)
	}
	h.do(func() { keeps.set(nil) })
	if problems := keeps.problems(); len(problems) != 0 {
		t.Errorf("without services: %v", problems)
	}
}
