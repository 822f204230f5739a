package server

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// TakesOver says why connections that load balancers begin (session tls) do not come to be here: as bpf/steer/take_over.h needs it. nil: they do.
func TakesOver() error {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return fmt.Errorf("read the kernel's types: %w", err)
	}
	var function *btf.Func
	if err := kernel.TypeByName("bpf_sk_assign_tcp_reqsk", &function); errors.Is(err, btf.ErrNotFound) {
		return errors.New("Linux 6.9 or newer is needed")
	} else if err != nil {
		return fmt.Errorf("look for bpf_sk_assign_tcp_reqsk: %w", err)
	}
	setting, err := os.ReadFile("/proc/sys/net/ipv4/tcp_syncookies")
	if err != nil {
		return fmt.Errorf("read net.ipv4.tcp_syncookies: %w", err)
	}
	if strings.TrimSpace(string(setting)) == "0" {
		return errors.New("net.ipv4.tcp_syncookies is 0: set it to 1")
	}
	return nil
}
