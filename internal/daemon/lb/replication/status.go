// How a load balancer stands to the others, for people and for Prometheus.
package replication

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/model"
)

// namelessLife is how long a ring may lack a node before that is reported: a controller takes less to give a number.
const namelessLife = 5 * time.Second

// NotReady is why packets of replicated services should not come here yet; empty: they may.
func (r *Replication) NotReady() string {
	if now := r.Tables.Now(); !now.Followed || !now.Running.Replicated() {
		return ""
	}
	return r.apart()
}

// apart is why this node cannot ask others; empty: it can, or there is no ring.
func (r *Replication) apart() string {
	if since := r.nameless.Load(); since != nil && time.Since(*since) >= namelessLife {
		return "the ring does not know this load balancer: see `ballast ctl replica list`"
	}
	if !r.informed.Load() {
		return "no controller has sent the list of load balancers with replicated entries yet"
	}
	if why := r.behind.why(time.Now()); why != "" {
		return why
	}
	state := r.state.Load()
	if state.PassedOn != "" && !state.isOnRing(state.Number) {
		return fmt.Sprintf("controllers have taken this load balancer off the ring, because they do not hear it: so says version %d of the ring, which %s has passed on",
			state.View.Version, state.PassedOn)
	}
	others, _ := r.pings.heard()
	asked := false
	for _, peer := range state.Peers {
		if peer.Number == state.Number || !state.isOnRing(peer.Number) {
			continue
		}
		if asked = true; slices.Contains(others, uint32(peer.Number)) {
			return ""
		}
	}
	if asked && !state.isOnRing(state.Number) {
		return fmt.Sprintf("no load balancer of the ring answers: UDP port %d must be open between load balancers", peermessage.Port)
	}
	return ""
}

// States of a peer.
const (
	heard   = "heard"
	silent  = "silent"
	unknown = "unknown"
)

// Status tells how things stand; nil: there are no others.
func (r *Replication) Status() *api.ReplicaStatus {
	now, state := r.live.Load(), r.state.Load()
	if len(state.Peers) == 0 {
		return nil
	}
	status := &api.ReplicaStatus{Number: state.Number, Address: r.OwnAddress(), OnRing: state.isOnRing(state.Number), Version: now.view, Synced: now.synced,
		Entries: now.entries, Answers: now.answers, Room: r.path.ReplicaCapacity(), Expired: now.expired, Uncopied: now.uncopied}
	if state.View != nil {
		status.Chain = state.View.Chain
	}
	status.Conflicts, _ = r.path.ReplicaConflicts()
	heardNow, silentNow := r.pings.heard()
	for _, peer := range state.Peers {
		if peer.Number == state.Number {
			continue
		}
		one := api.ReplicaPeer{Name: peer.Name, Address: peer.Address, OnRing: state.isOnRing(peer.Number), State: unknown}
		switch number := uint32(peer.Number); {
		case slices.Contains(heardNow, number):
			one.State = heard
		case slices.Contains(silentNow, number):
			one.State = silent
		}
		status.Peers = append(status.Peers, one)
	}
	return status
}

// Implementation constants: a table that is fuller than fullShare is a problem, whose remedies make it no fuller than roomyShare.
const (
	fullShare  = 0.8
	roomyShare = 0.5
)

// remedy is what gives a table with so many entries room again, if connections stay as many. Each load balancer's part of them is that of one on the ring.
func remedy(entries, room uint64, onRing int) string {
	others := max(1, int(math.Ceil(float64(onRing)*float64(entries)/(roomyShare*float64(room))))-onRing)
	larger := fmt.Sprintf("start all with --max-replicated %.0f or more (docs/features/replicas.md, \"Larger tables\"), or lower replicas.idle_timeout", float64(entries)/roomyShare)
	if onRing == 0 || onRing+others > model.MaxReplicaNodes {
		return larger
	}
	return fmt.Sprintf("add %s, %s", model.Counted(uint64(others), "load balancer", "load balancers"), larger)
}

// Problems are what operators should know.
func (r *Replication) Problems() (problems []string) {
	if now := r.live.Load(); now.problem != "" {
		problems = append(problems, "replicated entries: "+now.problem)
	}
	if why := r.cannotListen.Load(); why != nil && *why != "" {
		problems = append(problems, *why)
	}
	status := r.Status()
	if status == nil {
		return problems
	}
	onRing := 0
	if view := r.state.Load().View; view != nil {
		onRing = len(view.List)
	}
	for _, table := range []struct {
		what, harm string
		entries    uint64
	}{{"entries", "new connections that have no room go by hash", status.Entries}, {"answers", "of connections that have no room each packet is asked again", status.Answers}} {
		if float64(table.entries) >= fullShare*float64(status.Room) {
			problems = append(problems, fmt.Sprintf("%d replicated %s of %d: %s: %s", table.entries, table.what, status.Room, table.harm, remedy(table.entries, status.Room, onRing)))
		}
	}
	for _, peer := range status.Peers {
		if peer.OnRing && peer.State == silent {
			problems = append(problems, fmt.Sprintf("load balancer %s at %s does not answer: packets that ask it are dropped until a controller that can write to the store takes it off the ring", peer.Name, peer.Address.Addr()))
		}
	}
	return problems
}

var (
	metricEntries   = prometheus.NewDesc("ballast_replica_entries", "Entries of the replicated table: of chains that this load balancer is in (entries), and others (answers).", []string{"table"}, nil)
	metricCapacity  = prometheus.NewDesc("ballast_replica_capacity", "Entries that each of the two tables can hold.", nil, nil)
	metricVersion   = prometheus.NewDesc("ballast_replica_version", "Version of the ring in use; 0: none.", nil, nil)
	metricSynced    = prometheus.NewDesc("ballast_replica_synced_version", "Newest version of the ring that is known to be synced.", nil, nil)
	metricPeers     = prometheus.NewDesc("ballast_replica_peers", "Other load balancers, by the state of their data path.", []string{"state"}, nil)
	metricExpired   = prometheus.NewDesc("ballast_replica_expired_total", "Entries and answers that have expired.", nil, nil)
	metricUncopied  = prometheus.NewDesc("ballast_replica_uncopied_total", "Entries that a sync had no room for: one load balancer less has them.", nil, nil)
	metricConflicts = prometheus.NewDesc("ballast_replica_conflicts_total", "Answers that contradict what was known.", nil, nil)
)

// Describe is of prometheus.Collector.
func (r *Replication) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{metricEntries, metricCapacity, metricVersion, metricSynced, metricPeers, metricExpired, metricUncopied, metricConflicts} {
		out <- desc
	}
}

// Collect is of prometheus.Collector.
func (r *Replication) Collect(out chan<- prometheus.Metric) {
	status := r.Status()
	if status == nil {
		return
	}
	gauge := func(desc *prometheus.Desc, value uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	gauge(metricEntries, status.Entries, "entries")
	gauge(metricEntries, status.Answers, "answers")
	gauge(metricCapacity, status.Room)
	gauge(metricVersion, uint64(status.Version))
	gauge(metricSynced, uint64(status.Synced))
	for _, state := range []string{heard, silent, unknown} {
		n := uint64(0)
		for _, peer := range status.Peers {
			if peer.State == state {
				n++
			}
		}
		gauge(metricPeers, n, state)
	}
	out <- prometheus.MustNewConstMetric(metricExpired, prometheus.CounterValue, float64(status.Expired))
	out <- prometheus.MustNewConstMetric(metricUncopied, prometheus.CounterValue, float64(status.Uncopied))
	out <- prometheus.MustNewConstMetric(metricConflicts, prometheus.CounterValue, float64(status.Conflicts))
}
