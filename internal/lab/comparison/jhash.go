package comparison

import (
	"fmt"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// jhash is the load balancing of nftables: the hash of client and port chooses the server, and the packet goes there as it is (direct return), by its
// address on the link. The kernel keeps nothing of connections.
func jhash() Contender {
	return Contender{
		Name: "nftables", About: "nftables jhash at netdev ingress, direct return, on two balancers", Balancers: 2,
		Programs: map[string]string{"nft": "nftables"},
		Version:  func(string) []string { return []string{"nft", "-v"} },
		New:      func(t *world.Trial) Balancing { return &ruleset{t: t, away: map[int]bool{}} },
	}
}

// jhashSeed is that of all balancers: without one, the kernel draws another for each rule, and no two balancers agree.
const jhashSeed = 0xba11a57

type ruleset struct {
	t    *world.Trial
	pool []State
	away map[int]bool
}

// rules replace those there are at once.
func (r *ruleset) rules() string {
	active := with(r.pool, Active)
	var servers []string
	for slot, i := range active {
		servers = append(servers, fmt.Sprintf("%d : %s", slot, script.Must(r.t.Lab.Space(world.ServerName(i)).MAC("eth0"))))
	}
	return fmt.Sprintf(`table netdev balance
delete table netdev balance
table netdev balance {
  chain in {
    type filter hook ingress device eth0 priority 0
    ip daddr %s tcp dport %d ether daddr set jhash ip saddr . tcp sport mod %d seed 0x%x map { %s } fwd to eth1
  }
}`, target.Addr(), target.Port(), len(active), jhashSeed, strings.Join(servers, ", "))
}

func (r *ruleset) Start(pool []State) {
	for i := 1; i <= r.t.Network.LBs; i++ { // frames that it forwards have an address of a link in front of them that is not the sender's
		script.Check(r.t.Lab.Space(world.LBName(i)).Sysctl("net.ipv4.ip_forward", "1"))
	}
	r.Change(pool)
}

func (r *ruleset) Change(pool []State) {
	r.pool = pool
	for i := 1; i <= r.t.Network.LBs; i++ {
		if !r.away[i] {
			r.Reload(i)
		}
	}
}

func (r *ruleset) Kill(i int) { r.away[i] = true }

func (r *ruleset) Boot(i int) {
	r.away[i] = false
	r.Reload(i)
}

// Restart is what the service does: it loads the rules again.
func (r *ruleset) Restart(i int) { r.Reload(i) }

func (r *ruleset) Reload(i int) {
	script.Checkf(r.t.Lab.Run(world.LBName(i), r.rules(), "nft", "-f", "-"), "balance by nftables")
}

func (r *ruleset) Processes() []*host.Process { return nil }
