// The router of a lab that learns its routes to VIPs by BGP: BIRD or FRR, as Debian has them.
package world

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/model"
)

// A Routing is what a router runs. The zero value: it has static routes to all load balancers.
type Routing struct {
	Daemon string // bird or frr
	IPv6   bool   // sessions are over IPv6, and carry VIPs of both families (RFC 8950)
}

// The two sides of all sessions.
const (
	routerAS   = 64512
	balancerAS = 64600
	// BFDDetection is after how long the router holds a load balancer for dead.
	BFDDetection = 600 * time.Millisecond
)

// Password is that of all sessions.
const bgpPassword = "lab-secret"

// speakBGP gives load balancers what they need for sessions with the router.
func (t *Trial) speakBGP() {
	if t.Topology.Routing.Daemon == "" {
		return
	}
	for i := range t.Topology.LBs {
		name := LBName(i + 1)
		secret := filepath.Join(t.NodeDir(name), "bgp.password")
		script.Check(os.WriteFile(secret, []byte(bgpPassword+"\n"), 0o600))
		node := model.Node{Name: name, BGP: model.BGP{AS: balancerAS, NeighborAS: routerAS, Neighbors: []model.Neighbor{{Address: t.routerAddress(i + 1)}},
			RouterID: model.RouterID{Addr: prefix("10.20.%d.2/24", i+1).Addr()}, PasswordFile: secret, TTLSecurity: 1, ConnectRetry: model.MinConnectRetry,
			Delay: model.Duration(time.Second), BFD: model.BFD{Interval: model.Duration(BFDDetection / model.DefaultBFD)}}}
		t.Fleet.Nodes = append(t.Fleet.Nodes, node)
	}
}

// routerAddress is the router's on its link to load balancer i; balancerAddress that of the load balancer there.
func (l *Lab) routerAddress(i int) netip.Addr {
	if l.Topology.Routing.IPv6 {
		return prefix("fd20:0:0:%x::1/64", i).Addr()
	}
	return prefix("10.20.%d.1/24", i).Addr()
}

func (l *Lab) balancerAddress(i int) netip.Addr {
	if l.Topology.Routing.IPv6 {
		return prefix("fd20:0:0:%x::2/64", i).Addr()
	}
	return prefix("10.20.%d.2/24", i).Addr()
}

// startRouting starts the router's daemons. A document has the same text, between its marks (docs/run/bgp.md).
func (l *Lab) startRouting() {
	dir := l.NodeDir(RouterNode)
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		script.Check(os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	switch l.Topology.Routing.Daemon {
	case "bird":
		path, err := exec.LookPath("bird")
		script.Checkf(err, "find BIRD: install bird2")
		script.Must(l.startRouter(path, "-f", "-c", write("bird.conf", l.birdConfig()), "-s", filepath.Join(dir, "bird.ctl")))
	case "frr":
		script.Checkf(l.startFRR(dir, write("frr.conf", l.frrConfig())), "start FRR: is frr installed?")
	default:
		script.Check(fmt.Errorf("no router runs %q", l.Topology.Routing.Daemon))
	}
}

// startRouter starts a daemon before all others that want a CPU: a router that shares none with clients and servers misses no BFD packet.
func (l *Lab) startRouter(program string, arguments ...string) (*Process, error) {
	return l.Start(Spawn{Node: RouterNode, Program: "chrt", Arguments: append([]string{"--fifo", "10", program}, arguments...)})
}

// startFRR starts its daemons as its own user, and has its shell read the configuration.
func (l *Lab) startFRR(dir, config string) error {
	const programs = "/usr/lib/frr"
	owner, err := user.Lookup("frr")
	if err != nil {
		return err
	}
	uid, err := strconv.Atoi(owner.Uid)
	if err = errors.Join(err, os.Chown(dir, uid, -1)); err != nil {
		return err
	}
	for _, name := range []string{"zebra", "bfdd", "bgpd"} {
		arguments := []string{"-i", filepath.Join(dir, name+".pid"), "--vty_socket", dir, "-P", "0", "-z", filepath.Join(dir, "zserv.api")}
		if name == "bfdd" {
			arguments = append(arguments, "--bfdctl", filepath.Join(dir, "bfdd.sock"))
		}
		if _, err := l.startRouter(filepath.Join(programs, name), arguments...); err != nil {
			return err
		}
		Await(context.Background(), DaemonDeadline, name+" listens", func() error { _, err := os.Stat(filepath.Join(dir, name+".vty")); return err })
	}
	said, err := exec.Command("vtysh", "--vty_socket", dir, "-f", config).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, said)
	}
	return nil
}

// BIRDConfig and FRRConfig are what documents show for one load balancer; more are as many neighbours.
func (l *Lab) birdConfig() string {
	var b strings.Builder
	b.WriteString(BIRDConfig)
	for i := range l.Topology.LBs {
		name := LBName(i + 1)
		fmt.Fprintf(&b, "protocol bgp %s from balancers { neighbor %s as %d; interface \"%s\"; }\n", name, l.balancerAddress(i+1), balancerAS, uplink(name))
	}
	return b.String()
}

func (l *Lab) frrConfig() string {
	neighbors := ""
	for i := range l.Topology.LBs {
		neighbors += fmt.Sprintf(" neighbor %s peer-group balancers\n", l.balancerAddress(i+1))
	}
	return strings.Replace(FRRConfig, " neighbor 10.20.1.2 peer-group balancers\n", neighbors, 1)
}

// BIRDConfig is for BIRD 2: sessions with load balancers follow.
const BIRDConfig = `router id 10.20.0.254;
protocol device { }
protocol kernel { ipv4 { import none; export all; }; merge paths on; }
protocol kernel { ipv6 { import none; export all; }; merge paths on; }
protocol bfd { interface "*" { min rx interval 200 ms; min tx interval 200 ms; multiplier 3; }; }
filter vips {
  if net.type = NET_IP4 && net ~ [ 198.51.100.0/24{32,32} ] then accept;
  if net.type = NET_IP6 && net ~ [ 2001:db8:100::/64{128,128} ] then accept;
  reject;
}
template bgp balancers {
  local as 64512;
  passive on;
  password "lab-secret";
  ttl security on;
  graceful restart aware;
  bfd on;
  error wait time 1, 10;
  ipv4 { import filter vips; export none; extended next hop on; };
  ipv6 { import filter vips; export none; };
}
`

// FRRConfig is for FRR 8 and later.
const FRRConfig = `frr defaults datacenter
bfd
 profile balancers
  detect-multiplier 3
  receive-interval 200
  transmit-interval 200
 exit
exit
ip prefix-list vips seq 5 permit 198.51.100.0/24 ge 32
ipv6 prefix-list vips6 seq 5 permit 2001:db8:100::/64 ge 128
route-map none deny 10
exit
router bgp 64512
 bgp router-id 10.20.0.254
 neighbor balancers peer-group
 neighbor balancers remote-as 64600
 neighbor balancers passive
 neighbor balancers password lab-secret
 neighbor balancers ttl-security hops 1
 neighbor balancers graceful-restart-helper
 neighbor balancers bfd profile balancers
 neighbor balancers capability extended-nexthop
 neighbor 10.20.1.2 peer-group balancers
 address-family ipv4 unicast
  neighbor balancers activate
  neighbor balancers prefix-list vips in
  neighbor balancers route-map none out
  maximum-paths 16
 exit-address-family
 address-family ipv6 unicast
  neighbor balancers activate
  neighbor balancers prefix-list vips6 in
  neighbor balancers route-map none out
  maximum-paths 16
 exit-address-family
exit
`

// RoutedBy are the load balancers that the router's kernel sends a VIP's packets to.
func (t *Trial) RoutedBy(vip netip.Addr) (names []string, err error) {
	err = t.Space(RouterNode).Do(func() error {
		family := netlink.FAMILY_V4
		if vip.Is6() {
			family = netlink.FAMILY_V6
		}
		routes, err := netlink.RouteList(nil, family)
		for _, route := range routes {
			if to, ok := netip.AddrFromSlice(dstOf(&route)); !ok || to != vip {
				continue
			}
			hops := []int{route.LinkIndex}
			for _, hop := range route.MultiPath {
				hops = append(hops, hop.LinkIndex)
			}
			for _, index := range hops {
				if device, err := netlink.LinkByIndex(index); index != 0 && err == nil {
					names = append(names, strings.TrimSuffix(device.Attrs().Name, "-up"))
				}
			}
		}
		return err
	})
	slices.Sort(names)
	return names, err
}

func dstOf(route *netlink.Route) []byte {
	if route.Dst == nil {
		return nil
	}
	if four := route.Dst.IP.To4(); four != nil {
		return four
	}
	return route.Dst.IP
}

// AwaitRoutes waits until the router sends the packets of all VIPs to these load balancers.
func (t *Trial) AwaitRoutes(within time.Duration, lbs ...int) {
	var want []string
	for _, i := range lbs {
		want = append(want, LBName(i))
	}
	AwaitPromised(t.Context, within, fmt.Sprintf("the router sends to %v", want), func() error {
		for _, vip := range t.Topology.VIPs {
			have, err := t.RoutedBy(vip)
			if err == nil && !slices.Equal(have, want) {
				err = fmt.Errorf("it sends %s to %v", vip, have)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Silence makes all packets between the router and a load balancer disappear, as if it had lost its power, with its links up; false: no more.
func (t *Trial) Silence(i int, silent bool) {
	var faults link.Faults
	if silent {
		faults.DropPermille = 1000
	}
	t.Lose(RouterNode, uplink(LBName(i)), faults)
	t.Lose(LBName(i), "eth0", faults)
}

// Die is what a load balancer does whose machine has gone. What it had in memory is gone.
func (t *Trial) Die(i int) {
	node := t.LBs[LBName(i)]
	t.Silence(i, true)
	node.Kill()
	node.down = true
}

// Reborn starts a load balancer that has died, with nothing but its files.
func (t *Trial) Reborn(i int) {
	name := LBName(i)
	_, err := removePins(t.NodeDir(name))
	script.Check(err)
	t.LBs[name] = nil
	t.Apply()
	t.Silence(i, false)
}

// DetachLB removes the data path of a load balancer, whose daemon has ended.
func (t *Trial) DetachLB(i int) {
	node := LBName(i)
	dir := t.NodeDir(node)
	p := script.Must(t.Start(Spawn{Node: node, Program: t.Binary, Arguments: []string{"lb", "--detach", "--instance", instance, "--run-dir", filepath.Join(dir, "run"),
		"--state-dir", filepath.Join(dir, "state")}}))
	<-p.Exited
	if p.Err != nil {
		script.Check(errors.Join(p.Err, errors.New(p.LastWords())))
	}
}

// BGP asks a load balancer for its sessions.
func (t *Trial) BGP(node string) (status api.BGPStatus, err error) {
	err = t.Client(node).Get(t.Context, api.PathBGP, &status)
	return status, err
}
