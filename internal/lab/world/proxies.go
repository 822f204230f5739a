// Two hosts that are balanced by programs that are not ours.
package world

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/software"
)

// ProxyPort is where HAProxy serves the VIPs: the servers' own port is nginx's.
const ProxyPort = 81

// ownPort is where HAProxy counts, for keepalived and for the lab.
const ownPort = 9000

// advertisements of keepalived come as often as load balancers of Ballast ask for a VIP.
const advertisements = "0.2"

// Proxies are HAProxy and keepalived on both hosts of a trial with Topology.Both.
type Proxies struct {
	t          *Trial
	proxies    [2]*host.Process
	keepalived [2]*host.Process
	sessions   [2]map[string]int // VIP -> connections of processes that have ended, and were asked before
}

// StartProxies starts them, each with half of the VIPs.
func (t *Trial) StartProxies() *Proxies {
	p := &Proxies{t: t, sessions: [2]map[string]int{{}, {}}}
	for i := 1; i <= 2; i++ {
		for _, vip := range t.Network.VIPs { // keepalived's, not the servers'
			script.Check(t.Lab.Run(LBName(i), "", "ip", "address", "delete", netip.PrefixFrom(vip, vip.BitLen()).String(), "dev", "lo"))
		}
		p.start(i)
	}
	return p
}

func (p *Proxies) pair(i int) software.ProxyPair {
	pair := p.t.proxy(i, ProxyPort)
	pair.I, pair.Interval = i, advertisements
	return pair
}

// proxy is HAProxy on the host of load balancer i, with all servers for all VIPs.
func (t *Trial) proxy(i int, port uint16) software.ProxyPair {
	node := LBName(i)
	proxy := software.ProxyPair{Node: node, Name: node, Dir: filepath.Join(t.Lab.NodeDir(node), "proxy"), Health: PathHealth,
		CheckMS: time.Duration(CheckInterval).Milliseconds(), Rise: CheckRise, Fall: CheckFall,
		Own: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), ownPort)}
	for _, vip := range t.Network.VIPs {
		proxy.Addresses = append(proxy.Addresses, netip.AddrPortFrom(vip, port))
	}
	for server := 1; server <= len(t.Network.Servers); server++ {
		proxy.Servers = append(proxy.Servers, software.Site{Name: ServerName(server), Address: netip.AddrPortFrom(t.Network.ServerAddress(server, false), 80)})
	}
	return proxy
}

func (p *Proxies) start(i int) {
	pair := p.pair(i)
	p.proxies[i-1], p.keepalived[i-1] = pair.Proxy(p.t.Lab), pair.Keepalived(p.t.Lab)
}

// Restart ends HAProxy of a host, politely or not, and starts it again.
func (p *Proxies) Restart(i int, politely bool) {
	p.keep(i)
	if politely {
		p.proxies[i-1].Stop(p.t.Context)
	} else {
		p.proxies[i-1].Kill()
	}
	p.proxies[i-1] = p.pair(i).Proxy(p.t.Lab)
}

// PowerOff ends a host.
func (p *Proxies) PowerOff(i int) {
	p.keep(i)
	for _, device := range []string{"eth0", "eth1"} { // links first: nobody hears of it
		script.Check(p.t.Lab.Space(LBName(i)).SetLink(device, false))
	}
	p.t.Servers.Kill(i)
	p.keepalived[i-1].Kill()
	p.proxies[i-1].Kill()
}

// PowerOn boots it.
func (p *Proxies) PowerOn(i int) {
	node := LBName(i)
	for _, vip := range p.t.Network.VIPs {
		script.Check(p.t.Lab.Run(node, "", "ip", "address", "flush", "dev", "eth1", "to", vip.String()))
	}
	for _, device := range []string{"eth1", "eth0"} {
		script.Check(p.t.Lab.Space(node).SetLink(device, true))
	}
	p.t.Routes.routeToFarServers(node)
	p.t.Routes.routeUp(i)
	p.t.Servers.Restart(i)
	p.start(i)
}

// AwaitOwned waits until a host has so many VIPs.
func (p *Proxies) AwaitOwned(i, count int) {
	await.Until(p.t.Context, await.Deadline, fmt.Sprintf("keepalived of host %d has %d VIPs", i, count), func() error {
		owned := 0
		err := p.t.Lab.Space(LBName(i)).Do(func() error {
			device, err := net.InterfaceByName("eth1")
			if err != nil {
				return err
			}
			addresses, err := device.Addrs()
			for _, vip := range p.t.Network.VIPs {
				for _, address := range addresses {
					if network, ok := address.(*net.IPNet); ok && network.IP.Equal(vip.AsSlice()) {
						owned++
					}
				}
			}
			return err
		})
		if err == nil && owned != count {
			err = fmt.Errorf("it has %d", owned)
		}
		return err
	})
}

// AwaitHealth waits until HAProxy of a host has a server in use, or not.
func (p *Proxies) AwaitHealth(i, server int, up bool) {
	await.Until(p.t.Context, await.Deadline, fmt.Sprintf("HAProxy of host %d has %s up: %v", i, ServerName(server), up), func() error {
		rows, err := p.stats(i)
		for _, row := range rows {
			if row[0] == "web" && row[1] == ServerName(server) && strings.HasPrefix(row[17], "UP") == up {
				return nil
			}
		}
		if err == nil {
			err = fmt.Errorf("it has %v", rows)
		}
		return err
	})
}

// Sessions is how many connections each HAProxy has taken, by VIP, as far as it was asked before it ended.
func (p *Proxies) Sessions() [2]map[string]int {
	for i := 1; i <= 2; i++ {
		p.keep(i)
	}
	return p.sessions
}

func (p *Proxies) keep(i int) {
	for _, row := range script.Must(p.stats(i)) {
		if row[1] == "FRONTEND" && row[0] != "own" {
			p.sessions[i-1][row[0]] += script.Must(strconv.Atoi(row[7]))
		}
	}
}

func (p *Proxies) stats(i int) ([][]string, error) { return proxyStats(p.t.Lab, p.pair(i)) }

// proxyStats are the rows of HAProxy's statistics (management guide, 9.1): proxy, server, ..., 4 open, ..., 7 connections, ..., 17 status.
func proxyStats(lab *host.Lab, pair software.ProxyPair) (rows [][]string, err error) {
	err = lab.Space(pair.Node).Do(func() error {
		connection, err := net.DialTimeout("tcp", pair.Own.String(), time.Second)
		if err != nil {
			return err
		}
		defer connection.Close()
		if err := connection.SetDeadline(time.Now().Add(await.Deadline)); err != nil {
			return err
		}
		fmt.Fprint(connection, "GET /stats;csv HTTP/1.0\r\n\r\n")
		lines := bufio.NewScanner(connection)
		for lines.Scan() {
			if row := strings.Split(lines.Text(), ","); len(row) > 17 && !strings.HasPrefix(row[0], "#") {
				rows = append(rows, row)
			}
		}
		return lines.Err()
	})
	return rows, err
}
