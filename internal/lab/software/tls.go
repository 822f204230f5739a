package software

import (
	_ "embed"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/process/tlsclient"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// TicketGroup is the group of Apache's workers, which give up root.
const TicketGroup = "www-data"

// Page is the path of nginx's page for browsers, which makes connections of its own.
const Page = "/page"

// page has loaded when it has made its connections, and shows the answers.
//
//go:embed page.html
var page []byte

// TLS is a program that serves TLS at an address, with session tickets by the file of the server's agent as soon as
// that is there.
func TLS(lab *host.Lab, node, program string, address netip.AddrPort, certificate, tickets string) Program {
	dir := filepath.Join(lab.NodeDir(node), program+"-tls")
	script.Checkf(os.MkdirAll(filepath.Join(dir, "root"), 0o755), "configure %s", program)
	script.Checkf(os.WriteFile(filepath.Join(dir, "root", "index.html"), nil, 0o644), "configure %s", program)
	script.Checkf(os.WriteFile(filepath.Join(dir, "page.html"), page, 0o644), "configure %s", program)
	return Program{
		Node: node, Name: program, Configuration: program + "-tls", Dir: dir,
		Values:      Site{Dir: dir, Name: node, Header: tlsclient.Header, Address: address, Certificate: certificate, Page: Page, Group: TicketGroup},
		Environment: []string{"LD_PRELOAD=" + Preloaded(&lab.Options, "ticket"), "BALLAST_TICKETS=" + tickets},
	}
}
