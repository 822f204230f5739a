// Who names the servers of a service, where controllers can ask: on the operator's node.
package world

import (
	"net"
	"net/netip"
	"path/filepath"

	"github.com/ballast-lb/ballast/internal/lab/script"
)

// ListenAtOperator listens on the operator's node by TCP and UDP.
func (t *Trial) ListenAtOperator(port uint16) (stream net.Listener, packets net.PacketConn) {
	at := netip.AddrPortFrom(manageAddress(operatorNode), port)
	script.Checkf(t.Lab.Space(operatorNode).Do(func() (err error) {
		if stream, err = net.Listen("tcp", at.String()); err != nil {
			return err
		}
		packets, err = net.ListenPacket("udp", at.String())
		return err
	}), "listen on the operator's node")
	return stream, packets
}

// SourcesDir is what controllers have as --sources-dir.
func (c *Controllers) SourcesDir() string { return filepath.Join(c.lab.Dir, "sources") }
