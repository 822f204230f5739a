package daemons

import (
	"regexp"
	"slices"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/linux/attach"
)

// parseXDPMode reads --xdp-mode.
func parseXDPMode(text string) (attach.XDPMode, error) {
	mode := attach.XDPMode(text)
	if !slices.Contains([]attach.XDPMode{attach.XDPAuto, attach.XDPNative, attach.XDPGeneric}, mode) {
		return "", command.Usage("read --xdp-mode %q: use auto, native or generic", text)
	}
	return mode, nil
}

var instanceName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._@-]{0,62}$`)

// checkInstance: it is a name in paths.
func checkInstance(name string) error {
	if !instanceName.MatchString(name) {
		return command.Usage("--instance %q: use up to 63 letters, digits and . _ - @, not beginning with a dot", name)
	}
	return nil
}
