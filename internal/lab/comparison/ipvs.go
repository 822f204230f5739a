package comparison

import (
	"fmt"
	"os"

	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// ipvs is the kernel's load balancer with direct return, its connections synchronised between both balancers and taken over by sloppy_tcp, as
// Documentation/networking/ipvs-sysctl.rst has it.
func ipvs(scheduler string) Contender {
	return Contender{
		Name: "ipvs-" + scheduler, About: "IPVS, scheduler " + scheduler + ", direct return, two directors with sync daemons", Balancers: 2,
		Programs: map[string]string{"ipvsadm": "ipvsadm"},
		Possible: func() error {
			if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
				return fmt.Errorf("the kernel has not loaded IPVS: modprobe -a ip_vs ip_vs_%s, or make compare-ipvs, which runs it in QEMU", scheduler)
			}
			return nil
		},
		New: func(t *world.Trial) Balancing { return &director{t: t, scheduler: scheduler, away: map[int]bool{}} },
	}
}

type director struct {
	t         *world.Trial
	scheduler string
	pool      []State
	away      map[int]bool
}

// directorSysctls let a director take over what it does not know. A connection is synchronised with its third packet, by default.
var directorSysctls = map[string]string{
	"net.ipv4.ip_forward": "1", "net.ipv4.vs.sloppy_tcp": "1",
}

func (d *director) Start(pool []State) {
	d.pool = pool
	ownVIP(d.t)
	for i := 1; i <= d.t.Network.LBs; i++ {
		d.Boot(i)
	}
}

func (d *director) ipvsadm(i int, arguments ...string) {
	script.Check(d.t.Lab.Run(world.LBName(i), "", append([]string{"ipvsadm"}, arguments...)...))
}

// Boot begins with an empty table; the other director's daemon sends what there is as packets come.
func (d *director) Boot(i int) {
	d.away[i] = false
	for key, value := range directorSysctls {
		script.Check(d.t.Lab.Space(world.LBName(i)).Sysctl(key, value))
	}
	service := []string{"-A", "-t", target.String(), "-s", d.scheduler}
	if d.scheduler == "mh" {
		service = append(service, "-b", "mh-port,mh-fallback")
	}
	d.ipvsadm(i, service...)
	for k, state := range d.pool {
		d.ipvsadm(i, "-a", "-t", target.String(), "-r", serverAddress(d.t, k+1).String(), "-g", "-w", weight(state))
	}
	for _, role := range []string{"master", "backup"} {
		d.ipvsadm(i, "--start-daemon", role, "--mcast-interface", "eth1", "--syncid", "1")
	}
}

// weight is 0 for servers that get no new connection and keep those they have.
func weight(state State) string {
	if state == Active {
		return "1"
	}
	return "0"
}

func (d *director) Change(pool []State) {
	d.pool = pool
	for i := 1; i <= d.t.Network.LBs; i++ {
		for k, state := range pool {
			if !d.away[i] {
				d.ipvsadm(i, "-e", "-t", target.String(), "-r", serverAddress(d.t, k+1).String(), "-g", "-w", weight(state))
			}
		}
	}
}

func (d *director) Kill(i int) {
	d.away[i] = true
	d.ipvsadm(i, "-C")
	for _, role := range []string{"master", "backup"} {
		d.ipvsadm(i, "--stop-daemon", role)
	}
}

// Restart of keepalived or ipvsadm's service changes what the pool does not have: the kernel's table stays.
func (d *director) Restart(int) { d.Change(d.pool) }

func (d *director) Reload(int) { d.Change(d.pool) }

func (d *director) Processes() []*host.Process { return nil }
