// What flags of several commands have in common.
package daemons

import (
	"cmp"
	"fmt"
	"regexp"

	"github.com/spf13/pflag"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/plan"
)

// modeFlag is --xdp-mode.
func modeFlag(flags *pflag.FlagSet, mode *attach.XDPMode, help string) {
	*mode = attach.XDPAuto
	flags.Var(command.OneOf(mode, attach.XDPAuto, attach.XDPNative, attach.XDPGeneric), "xdp-mode", help)
}

// timingFlags are how long removed servers count.
func timingFlags(flags *pflag.FlagSet, t *fleet.Timing) {
	flags.DurationVar(&t.Linger, "linger", t.Linger, "silence after which a removed server's connections count as ended")
	flags.DurationVar(&t.Quarantine, "quarantine", t.Quarantine, "time after that until its id may be used again")
}

func checkTiming(t *fleet.Timing) error {
	return cmp.Or(command.NotNegative("linger", t.Linger), command.NotNegative("quarantine", t.Quarantine))
}

var instanceName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._@-]{0,62}$`)

// checkInstance: it is a name in paths.
func checkInstance(name string) error {
	if !instanceName.MatchString(name) {
		return command.Usage("--instance %q: use up to 63 letters, digits and . _ - @, not beginning with a dot", name)
	}
	return nil
}

// consoleFlags are those of the page that shows the fleet.
func consoleFlags(flags *pflag.FlagSet, address, token *string) {
	flags.StringVar(address, "console", "", "address:port of a web page that shows the fleet and changes nothing (default: none); by TLS if it is not loopback")
	flags.StringVar(token, "console-token", "", "with --console: file with a token that people log in with (default: a certificate for role ctl; on loopback, whoever is on this host)")
}

func checkConsole(address, token string) error {
	if address == "" && token != "" {
		return command.Usage("--console-token is for --console: add --console 127.0.0.1:9440")
	}
	return command.CheckListen("console", address)
}

// limitFlags are how much a load balancer has room for. 0, which none of them may be: it is not said.
func limitFlags(flags *pflag.FlagSet, l *plan.Limits) {
	byFile := func(limit *uint32, name, usage, byFile string, controllers uint32) {
		flags.Uint32Var(limit, name, 0, fmt.Sprintf("%s (default: %s; with --controller %d)", usage, byFile, controllers))
	}
	d := &plan.DefaultLimits
	byFile(&l.Servers, "max-servers", "room for servers, counted once per service", "twice those of the file, 16384 at the least", d.Servers)
	byFile(&l.Slots, "max-slots", "room for table slots of all services together, twice what they use", "twice that, 1048576 at the least", d.Slots)
	byFile(&l.Entries, "max-entries", "room for connections in the tables of all services with affinity table, 48 bytes each", "1048576, or 131072 if the file has no such service", d.Entries)
	byFile(&l.Replicated, "max-replicated", "room for replicated connections that this load balancer keeps, and for as many that it remembers, 60 bytes for both", "262144, or 16384 if the file has no such service", d.Replicated)
	flags.Uint32Var(&l.Local, "max-local", d.Local, "connections that all services with affinity local-table remember together")
}

// checkLimits makes the room for entries whole blocks.
func checkLimits(flags *pflag.FlagSet, l *plan.Limits) error {
	const block = conntable.BlockEntries
	refused := func(name string, limit, most uint32) bool { return flags.Changed(name) && (limit == 0 || limit > most) }
	switch {
	case refused("max-servers", l.Servers, 1<<24):
		return command.Usage("--max-servers %d: use 1 to %d", l.Servers, 1<<24)
	case refused("max-slots", l.Slots, 1<<28):
		return command.Usage("--max-slots %d: use 1 to %d", l.Slots, 1<<28)
	case refused("max-entries", l.Entries, 1<<32-block):
		return command.Usage("--max-entries %d: use %d to %d; 48 bytes are taken for each, whether or not it is used", l.Entries, block, uint32(1<<32-block))
	case l.Local == 0:
		return command.Usage("--max-local 0: use 1 or more")
	case refused("max-replicated", l.Replicated, 1<<30):
		return command.Usage("--max-replicated %d: use 1 to %d; 60 bytes are taken for each, whether or not it is used", l.Replicated, 1<<30)
	}
	l.Entries = (l.Entries + block - 1) / block * block
	return nil
}
