package server_test

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"

	"github.com/ballast-lb/ballast/internal/linux/internal/tcx"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
)

// Promise: Programs of others at tc, of a network of pods, neither keep the agent's from their packets nor miss any, whichever was there first.
func TestProgramsOfOthersRunAfterOurs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := tcx.Have(); err != nil {
		t.Skip("filters have a test of their own:", err)
	}
	for _, earlier := range []bool{true, false} {
		t.Run(fmt.Sprintf("they were there first %v", earlier), func(t *testing.T) { programsOfOthersRun(t, earlier) })
	}
}

func programsOfOthersRun(t *testing.T, earlier bool) {
	r := newRig(t, rigOptions{plain: true})
	counters := map[ebpf.AttachType]*ebpf.Map{}
	add := func() {
		for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			program, counter := foreign(t, 0) // TC_ACT_OK: nobody after it is asked
			r.on(func(device *net.Interface) error {
				l, err := ebpflink.AttachTCX(ebpflink.TCXOptions{Interface: device.Index, Program: program, Attach: hook, Anchor: ebpflink.Tail()})
				if err == nil {
					t.Cleanup(func() { l.Close() })
				}
				return err
			})
			counters[hook] = counter
		}
	}
	if earlier {
		add()
	}
	r.attach("")
	if !earlier {
		add()
	}
	r.listen(false)
	before, w := r.rejects(), r.watch()
	r.browse(4, 1000)
	r.verify(w, before)
	for hook, ours := range map[ebpf.AttachType]uint64{ebpf.AttachTCXIngress: r.count("ingress_restored"), ebpf.AttachTCXEgress: r.count("egress_marked")} {
		var theirs uint64
		progtest.Check(t, counters[hook].Lookup(uint32(0), &theirs))
		if ours == 0 || theirs < ours {
			t.Errorf("%s: ours %d, theirs saw %d", hook, ours, theirs)
		}
	}
}
