// Devices by name.
package devices

import (
	"fmt"
	"net"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
)

// Find finds devices by name; without names, those of the default routes.
func Find(names []string) (devices []*net.Interface, err error) {
	if len(names) == 0 {
		if names, err = netdev.DefaultInterfaces(); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		device, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("find interface %s: %w: see `ip link`", name, err)
		}
		devices = append(devices, device)
	}
	return devices, nil
}
