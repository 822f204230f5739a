package tracking

import (
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
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
	space := progtest.NewSpace(t, "tracking")
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

// Promise: The agent makes its nftables table again within a second of a flush, and the table stays without an
// agent.
func TestTheTableOfUntrackedServicesFollowsThemAndComesBackAfterAFlush(t *testing.T) {
	h := newTrackingHost(t)
	h.nft(othersTable)
	mine := New("one", false, slog.New(slog.DiscardHandler))
	h.do(func() { mine.Set(sessionServices(443, 8443), nil) })
	for _, want := range []string{"table inet ballast_one", "198.51.100.10 . 443", "198.51.100.10 . 8443", "2001:db8::10 . 443", "notrack", othersTable} {
		if list := h.nft(""); !strings.Contains(list, want) {
			t.Errorf("%q is not in %s", want, list)
		}
	}
	h.nft("flush ruleset\n" + othersTable)
	h.do(mine.Follow)
	if list := h.nft(""); !strings.Contains(list, "198.51.100.10 . 443") {
		t.Errorf("after a flush there is %s", list)
	}
	h.nft("delete rule inet ballast_one output handle " + handleOf(h, "ballast_one"))
	h.do(mine.Follow)
	if list := h.nft(""); strings.Count(list, "notrack") != 4 {
		t.Errorf("after a rule was removed there is %s", list)
	}
	next := New("one", false, slog.New(slog.DiscardHandler)) // a process that takes over
	h.do(func() { next.Set(sessionServices(443), nil) })
	if list := h.nft(""); strings.Contains(list, "8443") || !slices.Equal(next.Untracked, []netip.AddrPort{
		netip.MustParseAddrPort("198.51.100.10:443"), netip.MustParseAddrPort("[2001:db8::10]:443")}) {
		t.Errorf("of one port %v: %s", next.Untracked, list)
	}
	if problems := next.Problems(); len(problems) != 0 {
		t.Error(problems)
	}
	h.do(func() { next.Set(sessionServices(443), []netip.Addr{netip.MustParseAddr("198.51.100.10")}) }) // whose packets only translation takes
	if list := h.nft(""); strings.Contains(list, "198.51.100.10") || !slices.Equal(next.Untracked, []netip.AddrPort{netip.MustParseAddrPort("[2001:db8::10]:443")}) {
		t.Errorf("without an address that the host does not have %v: %s", next.Untracked, list)
	}
	h.do(func() {
		if err := New("one", false, slog.New(slog.DiscardHandler)).Leave(); err != nil {
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
	before := New("one", false, slog.New(slog.DiscardHandler))
	h.do(func() { before.Set(sessionServices(443), nil) })
	keeps := New("one", true, slog.New(slog.DiscardHandler))
	h.do(func() { keeps.Set(sessionServices(443), nil) })
	if list := h.nft(""); list != "" || len(keeps.Untracked) != 0 {
		t.Errorf("of %v there is %s", keeps.Untracked, list)
	}
	if problems := keeps.Problems(); len(problems) != 0 {
		t.Errorf("without translation: %v", problems)
	}
	h.nft(othersTable)
	h.do(keeps.Follow)
	if problems := keeps.Problems(); len(problems) != 1 || !strings.Contains(problems[0], "chain c of table others") {
		t.Errorf("with translation: %v", problems)
	}
	h.do(func() { keeps.Set(nil, nil) })
	if problems := keeps.Problems(); len(problems) != 0 {
		t.Errorf("without services: %v", problems)
	}
}

// unmakeable is an instance whose table nftables refuses: its name is too long.
var unmakeable = strings.Repeat("x", 300)

// Promise: A server gets no new connections of `session: tls`, though checks succeed, while its kernel translates
// addresses and the agent cannot keep these connections out of tracking.
// Also held by TestALossThatNoCheckSeesCountsWhereOneSucceeds.
func TestWhereTheTableCannotBeMadeAndTheKernelTranslatesConnectionsAreLost(t *testing.T) {
	h := newTrackingHost(t)
	mine := New(unmakeable, false, slog.New(slog.DiscardHandler))
	h.do(func() { mine.Set(sessionServices(443), nil) })
	if problems := mine.Problems(); len(problems) != 1 || mine.Resets != "" {
		t.Errorf("without translation: %v, %q", problems, mine.Resets)
	}
	h.nft(othersTable)
	h.do(mine.Follow)
	if mine.Resets != "" {
		t.Errorf("nothing is tracked yet: %q", mine.Resets)
	}
	h.do(func() {
		connection, err := net.Dial("udp", "127.0.0.1:9")
		if err == nil {
			_, err = connection.Write([]byte("tracked"))
		}
		if err != nil {
			t.Error(err)
		}
		mine.Follow()
	})
	if problems := mine.Problems(); len(problems) != 1 || problems[0] != mine.Resets || !strings.Contains(mine.Resets, "chain c of table others") ||
		!strings.Contains(mine.Resets, "cannot be made") {
		t.Errorf("with translation: %v, %q", problems, mine.Resets)
	}
	h.nft("flush ruleset")
	h.do(mine.Follow)
	if mine.Resets != "" {
		t.Errorf("after the translation went: %q", mine.Resets)
	}
}

// makeLegacyTable has the kernel make a table as iptables-legacy has it: by asking for it.
func makeLegacyTable(t *testing.T, name string) {
	t.Helper()
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(socket)
	const getInfo = 64 // IPT_SO_GET_INFO
	var info [84]byte  // struct ipt_getinfo
	length := uint32(len(info))
	copy(info[:], name)
	if _, _, failed := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), unix.SOL_IP, getInfo, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&length)), 0); failed != 0 {
		t.Skipf("this kernel has no table %s of iptables-legacy: %v", name, failed)
	}
}

func TestTranslationByIptablesLegacyIsSeen(t *testing.T) {
	h := newTrackingHost(t)
	keeps := New("one", true, slog.New(slog.DiscardHandler))
	h.do(func() {
		keeps.Set(sessionServices(443), nil)
		if problems := keeps.Problems(); len(problems) != 0 {
			t.Errorf("without translation: %v", problems)
		}
		makeLegacyTable(t, "nat")
		keeps.Follow()
	})
	if problems := keeps.Problems(); len(problems) != 1 || !strings.Contains(problems[0], "table nat of iptables-legacy") {
		t.Errorf("with translation: %v", problems)
	}
}
