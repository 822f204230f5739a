package cli

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/linux/attach"
)

// parseXDPMode reads --xdp-mode.
func parseXDPMode(text string) (attach.XDPMode, error) {
	mode := attach.XDPMode(text)
	if !slices.Contains([]attach.XDPMode{attach.XDPAuto, attach.XDPNative, attach.XDPGeneric}, mode) {
		return "", usage("read --xdp-mode %q: use auto, native or generic", text)
	}
	return mode, nil
}
