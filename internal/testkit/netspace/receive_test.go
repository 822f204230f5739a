package netspace

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
)

// TestQueuesReceiveOnTheCPUsThatTheyAreGiven: by the kernel's default, and queue by queue where it has none.
func TestQueuesReceiveOnTheCPUsThatTheyAreGiven(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	if runtime.NumCPU() < 2 {
		t.Skip("needs two CPUs to tell one from all")
	}
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprintf("without the default: %t", old), func(t *testing.T) {
			a, b := newSpace(t), newSpace(t)
			for space, mask := range map[*Space]string{a: "2", b: "1"} {
				if old {
					space.cpus = mask
				} else if err := space.ReceiveOn(mask); err != nil {
					t.Fatal(err)
				}
			}
			if err := Connect(End{Space: a, Interface: "eth0", MTU: 1500}, End{Space: b, Interface: "eth0", MTU: 1500}); err != nil {
				t.Fatal(err)
			}
			for space, want := range map[*Space]string{a: "2", b: "1"} {
				var mask []byte
				err := space.Do(func() error {
					tree, err := openSysfs()
					if err != nil {
						return err
					}
					defer tree.Close()
					mask, err = tree.ReadFile("class/net/eth0/queues/rx-0/rps_cpus")
					return err
				})
				if got := strings.TrimLeft(strings.TrimSpace(string(mask)), "0,"); err != nil || got != want {
					t.Errorf("the queue receives on %s instead of %s: %v", got, want, err)
				}
			}
		})
	}
}

func newSpace(t *testing.T) *Space {
	t.Helper()
	space, err := CreateUnnamed()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(space.Close)
	return space
}
