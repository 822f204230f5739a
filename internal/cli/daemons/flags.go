// What flags of several commands have in common.
package daemons

import (
	"cmp"
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

// limitFlags are how much a load balancer has room for.
func limitFlags(flags *pflag.FlagSet, l *plan.Limits) {
	flags.Uint32Var(&l.Servers, "max-servers", l.Servers, "room for servers, counted once per service")
	flags.Uint32Var(&l.Slots, "max-slots", l.Slots, "room for table slots of all services together, twice what they use")
	flags.Uint32Var(&l.Entries, "max-entries", l.Entries, "room for connections in the tables of all services with affinity table, 48 bytes each")
	flags.Uint32Var(&l.Replicated, "max-replicated", l.Replicated, "room for replicated connections that this load balancer keeps, and for as many that it remembers, 60 bytes for both")
	flags.Uint32Var(&l.Local, "max-local", l.Local, "connections that all services with affinity local-table remember together")
}

// roundLimits makes the room for entries whole blocks.
func roundLimits(l *plan.Limits) error {
	const block = conntable.BlockEntries
	if l.Entries == 0 || l.Entries > 1<<32-block {
		return command.Usage("--max-entries %d: use %d to %d; 48 bytes are taken for each, whether or not it is used", l.Entries, block, uint32(1<<32-block))
	}
	if l.Local == 0 {
		return command.Usage("--max-local 0: use 1 or more")
	}
	if l.Replicated == 0 || l.Replicated > 1<<30 {
		return command.Usage("--max-replicated %d: use 1 to %d; 60 bytes are taken for each, whether or not it is used", l.Replicated, 1<<30)
	}
	l.Entries = (l.Entries + block - 1) / block * block
	return nil
}
