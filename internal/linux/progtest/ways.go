package progtest

import (
	"os"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/linux/internal/tcx"
)

// clsactOnly in the environment makes all tests go the way of kernels that have no tcx.
const clsactOnly = "BALLAST_TEST_CLSACT"

func init() {
	if os.Getenv(clsactOnly) != "" {
		tcx.Have = func() error { return ebpf.ErrNotSupported }
	}
}

// BothWays runs a test by tcx, if the kernel has it, and by clsact. Programs of the test's that it starts see which.
func BothWays(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	have := tcx.Have
	t.Run("tcx", func(t *testing.T) {
		if err := have(); err != nil {
			t.Skip(err)
		}
		test(t)
	})
	t.Run("clsact", func(t *testing.T) { Clsact(t, test) })
}

// Clsact runs a test by clsact.
func Clsact(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	have := tcx.Have
	t.Setenv(clsactOnly, "1")
	tcx.Have = func() error { return ebpf.ErrNotSupported }
	defer func() { tcx.Have = have }()
	test(t)
}
