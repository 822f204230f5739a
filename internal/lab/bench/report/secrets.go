package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// removed is in the place of what tells whose a machine is.
const removed = "(removed)"

// Lengths of identities at least: shorter ones are parts of ordinary words, and of numbers.
const (
	least       = 4
	leastDigits = 8
)

// common are host names that tell nothing, and are parts of what else is said.
var common = []string{"localhost", "debian", "linux", "ubuntu", "fedora"}

// identities are what a machine is known by: its name, its addresses, its numbers, and the names of its interfaces that have an address in them.
func identities(root fs.FS) (found []string, err error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("ask for the host's name: %w", err)
	}
	short, domain, _ := strings.Cut(host, ".")
	found = append(found, host, short, domain)
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	for _, device := range interfaces {
		if device.Flags&net.FlagLoopback != 0 {
			continue
		}
		found = append(found, device.HardwareAddr.String(), strings.ReplaceAll(device.HardwareAddr.String(), ":", ""))
		addresses, err := device.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list the addresses of %s: %w", device.Name, err)
		}
		for _, address := range addresses {
			if prefix, err := netip.ParsePrefix(address.String()); err == nil {
				found = append(found, prefix.Addr().WithZone("").String())
			}
		}
	}
	for _, file := range []string{"etc/machine-id", "proc/sys/kernel/random/boot_id", "sys/class/dmi/id/product_serial", "sys/class/dmi/id/product_uuid",
		"sys/class/dmi/id/board_serial", "sys/class/dmi/id/chassis_serial", "sys/class/dmi/id/chassis_asset_tag", "sys/class/dmi/id/board_asset_tag"} {
		found = append(found, line(root, file))
	}
	return tidy(found), nil
}

// tidy leaves out what is too common to be taken out of a text. None is a part of one that comes later.
func tidy(found []string) []string {
	found = slices.DeleteFunc(found, func(one string) bool {
		digits := strings.Trim(one, "0123456789") == ""
		return len(one) < least || digits && len(one) < leastDigits || slices.Contains(common, strings.ToLower(one))
	})
	slices.SortFunc(found, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	return slices.Compact(found)
}

// scrub takes identities out of a text, whatever field they came by.
func scrub(text []byte, identities []string) []byte {
	for _, one := range identities {
		for _, spelled := range []string{one, strings.ToLower(one), strings.ToUpper(one)} {
			text = bytes.ReplaceAll(text, []byte(spelled), []byte(removed))
		}
	}
	return text
}
