package world

import (
	"net/netip"
	"path/filepath"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/pki"
)

const certificatesLife = 24 * time.Hour

// certify makes an authority and a certificate for every node on the management network.
func certify(lab *host.Lab, t *Topology) {
	script.Check(pki.Init(certificates(lab), 2*certificatesLife, false))
	for role, nodes := range map[pki.Role][]string{
		pki.LB: names(LBName, t.LBs), pki.Agent: names(ServerName, len(t.Servers)), pki.Controller: names(ControllerName, t.Controllers),
		pki.Ctl: {operatorNode},
	} {
		for i, node := range nodes {
			request := pki.Request{Role: role, Life: certificatesLife, Name: node}
			if role == pki.Agent {
				request.Addresses = []netip.Addr{t.ServerAddress(i+1, false), t.ServerAddress(i+1, true)}
			}
			request.Addresses = append(request.Addresses, manageAddress(node))
			script.Checkf(pki.Issue(certificates(lab), request), "certify %s", node)
		}
	}
}

// certificates is the directory of all of them: the nodes of a lab share a file system.
func certificates(lab *host.Lab) string { return filepath.Join(lab.Dir, "tls") }
