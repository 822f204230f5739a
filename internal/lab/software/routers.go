package software

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Neighbor is a load balancer that a router has a BGP session with.
type Neighbor struct {
	Name, Interface string
	Address         netip.Addr
}

// first starts a router's daemon before all others that want a CPU: a router that shares none with clients and servers
// misses no BFD packet.
var first = []string{"chrt", "--fifo", "10"}

// StartRouter starts the daemons of a router that learns its routes by BGP: bird or frr, as Debian has them.
func StartRouter(lab *host.Lab, node, name string, neighbors []Neighbor) {
	dir := lab.NodeDir(node)
	switch name {
	case "bird":
		Program{Node: node, Name: name, Under: first, Configuration: name, Dir: dir, Values: neighbors,
			Arguments: []string{"-s", filepath.Join(dir, "bird.ctl")}}.Start(lab)
	case "frr":
		script.Checkf(script.Try(func() { startFRR(lab, node, dir, neighbors) }), "start FRR: is frr installed?")
	default:
		script.Check(fmt.Errorf("no router runs %q", name))
	}
}

// startFRR starts its daemons as its own user, and has its shell read the configuration.
func startFRR(lab *host.Lab, node, dir string, neighbors []Neighbor) {
	owner := script.Must(user.Lookup("frr"))
	script.Check(os.Chown(dir, script.Must(strconv.Atoi(owner.Uid)), -1))
	for _, name := range []string{"zebra", "bfdd", "bgpd"} {
		arguments := []string{"-i", filepath.Join(dir, name+".pid"), "--vty_socket", dir, "-P", "0", "-z", filepath.Join(dir, "zserv.api")}
		if name == "bfdd" {
			arguments = append(arguments, "--bfdctl", filepath.Join(dir, "bfdd.sock"))
		}
		daemon := Program{Node: node, Name: filepath.Join("/usr/lib/frr", name), Under: first, Arguments: arguments}.Start(lab)
		daemon.Await(name+" listens", func() error {
			_, err := os.Stat(filepath.Join(dir, name+".vty"))
			return err
		})
	}
	output, err := exec.Command("vtysh", "--vty_socket", dir, "-f", Configure("frr", dir, neighbors)).CombinedOutput()
	if err != nil {
		script.Check(errors.Join(err, errors.New(string(output))))
	}
}
