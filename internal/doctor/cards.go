package doctor

import (
	"fmt"
	"os"
	"strings"

	"github.com/ballast-lb/ballast/internal/linux/attach"
)

// A Card is what fleets whose load balancer has virtual machines' cards of one driver have shown of it (make test-cards): no request was lost.
type Card struct {
	Modes []attach.XDPMode // that the load balancer's program ran in
	MTU   int              // bytes; the largest that fleets ran with
	Most  int              // bytes; the largest MTU whose frames QEMU's card takes; 0: it is not known to lose any
	Loses string           // where longer ones are lost
}

// Cards is by the driver's name, as ethtool -i prints it.
var Cards = map[string]Card{
	"virtio_net": {Modes: []attach.XDPMode{attach.XDPNative, attach.XDPGeneric}, MTU: 1600},
	"vmxnet3": {Modes: []attach.XDPMode{attach.XDPNative}, MTU: 3050, Most: 3050,
		Loses: "QEMU's card loses frames of more than 3072 bytes once LRO is off, as programs, bridges and forwarding turn it"},
	"e1000e": {Modes: []attach.XDPMode{attach.XDPGeneric}, MTU: 9000},
}

// tested says how far a driver is tested.
func tested(driver string) string {
	card, known := Cards[driver]
	if !known {
		return "not tested with this driver"
	}
	var modes []string
	for _, mode := range card.Modes {
		modes = append(modes, string(mode))
	}
	return fmt.Sprintf("tested in virtual machines: %s, to MTU %d", strings.Join(modes, " and "), card.MTU)
}

// emulated reports whether QEMU made this machine, by what its firmware says (SMBIOS, type 1): VMware's cards are others.
func emulated() bool {
	vendor, err := os.ReadFile("/sys/class/dmi/id/sys_vendor")
	return err == nil && strings.TrimSpace(string(vendor)) == "QEMU"
}
