// MPTCP between clients and servers: what clients must set, and the end of a path.
package world

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/script"
)

// secondPath is an address of clients that no connection begins from; firstPaths are those that they begin from.
var (
	secondPath = netip.MustParsePrefix("10.10.2.1/16")
	firstPaths = netip.MustParsePrefix("10.10.1.0/24")
)

// receiveBuffers are those that hosts of MPTCP begin with: data that came early, by the faster subflow, can fill the default of 128 KiB, so that what is
// missing has no room any more (seen with tcp_nopush on Linux 6.18).
const receiveBuffers = "4096 4194304 16777216"

// giveSecondPath gives clients another address, and lets their kernel take up what servers tell (add_addr_accepted is 0 by default).
func (l *Lab) giveSecondPath() {
	script.Check(errors.Join(
		l.Space(ClientNode).AddAddress("eth0", secondPath),
		l.Space(ClientNode).Sysctl("net.ipv4.tcp_rmem", receiveBuffers),
		l.ip(ClientNode, "mptcp", "limits", "set", "subflows", "4", "add_addr_accepted", "4"),
		l.ip(ClientNode, "mptcp", "endpoint", "add", secondPath.Addr().String(), "dev", "eth0", "subflow", "fullmesh")))
}

// CutFirstPaths loses all that is sent to the addresses that clients' connections began from.
func (l *Lab) CutFirstPaths() {
	script.Check(l.ip(RouterNode, "route", "add", "blackhole", firstPaths.String()))
}

// ip runs iproute2 on a node: the library of the rest speaks no MPTCP.
func (l *Lab) ip(node string, arguments ...string) error {
	var said strings.Builder
	command := exec.Command("ip", arguments...)
	command.Stdout, command.Stderr = &said, &said
	err := l.Space(node).Start(command)
	if err == nil {
		err = command.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command.Args, " "), err, said.String())
	}
	return nil
}
