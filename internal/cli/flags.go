// Values of daemons' flags that cannot be right: refused before anything is opened, made or attached.
package cli

import (
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// checkAll returns the first objection.
func checkAll(checks ...error) error {
	for _, err := range checks {
		if err != nil {
			return err
		}
	}
	return nil
}

var instanceName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._@-]{0,62}$`)

// checkInstance: it is a name in paths.
func checkInstance(name string) error {
	if !instanceName.MatchString(name) {
		return usage("--instance %q: use up to 63 letters, digits and . _ - @, not beginning with a dot", name)
	}
	return nil
}

// checkEndpoints refuses what nobody can connect to.
func checkEndpoints(flag string, endpoints []string) error {
	for _, endpoint := range endpoints {
		host, port, err := net.SplitHostPort(endpoint)
		if err != nil || host == "" || !isPort(port) {
			return usage("--%s %q: use HOST:PORT with a port from 1 to 65535, like 10.0.0.21:6443 or [2001:db8::1]:6443", flag, endpoint)
		}
	}
	return nil
}

// checkListen refuses what cannot be listened at; the host may be missing, the port may be 0, for any. Empty: nothing is listened at.
func checkListen(flag, address string) error {
	if address == "" {
		return nil
	}
	if _, port, err := net.SplitHostPort(address); err != nil || (port != "0" && !isPort(port)) {
		return usage("--%s %q: use ADDRESS:PORT with a port from 1 to 65535, like 127.0.0.1:9435 or :9435", flag, address)
	}
	return nil
}

func isPort(text string) bool {
	port, err := strconv.ParseUint(text, 10, 16)
	return err == nil && port > 0
}

func notNegative(flag string, d time.Duration) error {
	if d < 0 {
		return usage("--%s %s: use 0s or more", flag, d)
	}
	return nil
}

// withPort adds the port of controllers where there is none.
func withPort(controller string) string {
	if _, _, err := net.SplitHostPort(controller); err == nil {
		return controller
	}
	return net.JoinHostPort(strings.Trim(controller, "[]"), controllerPort)
}
