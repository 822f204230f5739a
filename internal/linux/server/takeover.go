package server

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/ballast-lb/ballast/internal/linux/clock"
)

// RefusesMultipath says why no connections come to be at a listener, and the remedy.
const RefusesMultipath = "the listener uses MPTCP, and the kernel takes connections over for plain TCP alone: start the application with " +
	"GODEBUG=multipathtcp=0 if it is written in Go, or set net.mptcp.enabled to 0 and start it again"

// TakesOver says why connections that load balancers begin (session tls, syn_proxy) do not come to be here: as bpf/server/takeover/take_over.h needs it. nil: they do.
func TakesOver() error {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return fmt.Errorf("read the kernel's types: %w", err)
	}
	var function *btf.Func
	if err := kernel.TypeByName("bpf_sk_assign_tcp_reqsk", &function); errors.Is(err, btf.ErrNotFound) {
		return errors.New("the kernel has no bpf_sk_assign_tcp_reqsk: use Linux 6.9 or newer")
	} else if err != nil {
		return fmt.Errorf("look for bpf_sk_assign_tcp_reqsk: %w", err)
	}
	for _, setting := range []struct {
		name  string
		usual int
	}{{"tcp_syncookies", 1}, {"tcp_timestamps", 1}, {"tcp_sack", 1}, {"tcp_window_scaling", 1}, {"tcp_ecn", 2}} {
		value, err := os.ReadFile("/proc/sys/net/ipv4/" + setting.name)
		if err != nil {
			return fmt.Errorf("read net.ipv4.%s: %w", setting.name, err)
		}
		if strings.TrimSpace(string(value)) == "0" {
			return fmt.Errorf("net.ipv4.%s is 0, and load balancers promise clients what it turns off: sysctl -w net.ipv4.%[1]s=%d", setting.name, setting.usual)
		}
	}
	return nil
}

// FollowClock tells the programs how their clock differs from the time of day. It may change while the host runs: call it now and then.
func (s *Server) FollowClock() error {
	ahead, err := clock.TAIOffset()
	return errors.Join(err, s.objects.SynCookieTaiNs.Set(uint64(ahead)))
}
