// What load balancers report of the ring that keeps the replicated table.
package hub

import (
	"maps"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// syncsMax is how many syncs a load balancer may report.
const syncsMax = 1024

// replicaReport is what a load balancer has reported last, and when.
type replicaReport struct {
	*ballastv1.ReplicaReport
	at time.Time
}

// replicaReports are the newest by load balancer. Nodes.mutex guards them.
type replicaReports map[string]replicaReport

// expire removes old ones of load balancers that are not connected.
func (all replicaReports) expire(connected map[string]*peer) {
	maps.DeleteFunc(all, func(name string, r replicaReport) bool { return time.Since(r.at) > LostLife && connected[name] == nil })
}

// recordReplica takes a load balancer's report, if its stream is the newest of it. What makes no sense is cut short. Nobody knows of which
// host it is where two join as one: that one is taken off the ring once, and not with every change of streams.
func (n *Nodes) recordReplica(p *peer, report *ballastv1.ReplicaReport) {
	report.Heard = report.Heard[:min(len(report.Heard), replica.NodesMax)]
	report.Silent = report.Silent[:min(len(report.Silent), replica.NodesMax)]
	report.Done = report.Done[:min(len(report.Done), syncsMax)]
	report.Syncs = report.Syncs[:min(len(report.Syncs), syncsMax)]
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.peers[p.key()] == p && p.contested() == "" {
		n.replicas[p.identity.Name] = replicaReport{report, time.Now()}
	}
}

// ReplicaReports returns what load balancers have reported last of the ring, also those that are not connected any more.
func (n *Nodes) ReplicaReports() (reports []replica.Report) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.replicas.expire(n.lbs)
	for name, r := range n.replicas {
		reports = append(reports, r.decode(name))
	}
	return reports
}

func (r *replicaReport) decode(name string) replica.Report {
	report := replica.Report{Name: name, Age: time.Since(r.at), Incarnation: r.Incarnation, View: r.View, Synced: r.Synced, Done: r.Done,
		Heard: numbers(r.Heard), Silent: numbers(r.Silent), Shares: r.Shares}
	address, err := netip.ParseAddrPort(r.Address)
	if host := address.Addr().Unmap(); err == nil && host.Zone() == "" && host.IsGlobalUnicast() && r.Incarnation != 0 {
		report.Address = netip.AddrPortFrom(host, address.Port())
	}
	return report
}

// ReplicaReport returns what a load balancer has reported last, and how long ago; nil: nothing.
func (n *Nodes) ReplicaReport(name string) (report *ballastv1.ReplicaReport, age time.Duration) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	r := n.replicas[name]
	return r.ReplicaReport, time.Since(r.at)
}

func numbers(reported []uint32) (list []uint16) {
	for _, number := range reported {
		if number <= replica.NodesMax {
			list = append(list, uint16(number))
		}
	}
	return list
}
