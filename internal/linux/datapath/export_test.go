// What tests of other packages' kind need of this one's inside.
package datapath

import (
	"os"
	"testing"

	"github.com/cilium/ebpf"
)

// clsactOnly in the environment makes all tests go the way of kernels that have no tcx.
const clsactOnly = "BALLAST_TEST_CLSACT"

func init() {
	if os.Getenv(clsactOnly) != "" {
		haveTCX = func() error { return ebpf.ErrNotSupported }
	}
}

// BothWays runs a test by tcx, if the kernel has it, and by clsact. Programs of the test's that it starts see which.
func BothWays(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	have := haveTCX
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
	have := haveTCX
	t.Setenv(clsactOnly, "1")
	haveTCX = func() error { return ebpf.ErrNotSupported }
	defer func() { haveTCX = have }()
	test(t)
}

// AttachTC runs the programs at tc only.
func (s *Server) AttachTC(ifindex int) error {
	for _, place := range s.places(ifindex) {
		if err := place.attach(); err != nil {
			return err
		}
	}
	return nil
}

// AttachEgress runs a test's program as ours are run. The caller detaches it in the same network namespace.
func AttachEgress(program *ebpf.Program, ifindex int) (detach func() error, err error) {
	attached := &tcAttachment{program: program, hook: tcEgress, ifindex: ifindex}
	return attached.detach, attached.attach()
}

// SweepFilters deletes all filters of an instance.
func SweepFilters(dir string) error {
	return sweepFilters(dir, nothing)
}
