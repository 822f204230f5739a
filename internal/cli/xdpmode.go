package cli

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/linux/datapath"
)

// parseXDPMode reads --xdp-mode.
func parseXDPMode(text string) (datapath.XDPMode, error) {
	mode := datapath.XDPMode(text)
	if !slices.Contains([]datapath.XDPMode{datapath.XDPAuto, datapath.XDPNative, datapath.XDPGeneric}, mode) {
		return "", usage("read --xdp-mode %q: use auto, native or generic", text)
	}
	return mode, nil
}
