// Values of daemons' flags that cannot be right: refused before anything is opened, made or attached.
package command

import (
	"net"
	"strconv"
	"time"
)

// CheckEndpoints refuses what nobody can connect to.
func CheckEndpoints(flag string, endpoints []string) error {
	for _, endpoint := range endpoints {
		host, port, err := net.SplitHostPort(endpoint)
		if err != nil || host == "" || !isPort(port) {
			return Usage("--%s %q: use HOST:PORT with a port from 1 to 65535, like 10.0.0.21:6443 or [2001:db8::1]:6443", flag, endpoint)
		}
	}
	return nil
}

// CheckListen refuses what cannot be listened at; the host may be missing, the port may be 0, for any. Empty: nothing is listened at.
func CheckListen(flag, address string) error {
	if address == "" {
		return nil
	}
	if _, port, err := net.SplitHostPort(address); err != nil || (port != "0" && !isPort(port)) {
		return Usage("--%s %q: use ADDRESS:PORT with a port from 1 to 65535, like 127.0.0.1:9435 or :9435", flag, address)
	}
	return nil
}

func isPort(text string) bool {
	port, err := strconv.ParseUint(text, 10, 16)
	return err == nil && port > 0
}

// NotNegative refuses times before now.
func NotNegative(flag string, d time.Duration) error {
	if d < 0 {
		return Usage("--%s %s: use 0s or more", flag, d)
	}
	return nil
}
