// What operators are told of the ring.
package replicas

import (
	"fmt"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// List tells of the ring; see api.Desired.
func (m *Manager) List() (*ballastv1.ListReplicasResponse, error) {
	now := m.o.Mirror.Now()
	if now == nil {
		return nil, desired.ErrUnknown
	}
	wanted, needed := now.Replicas()
	members := &now.Ring
	answer := &ballastv1.ListReplicasResponse{Needed: needed, Replicas: api.ReplicasToProto(&wanted), Version: members.Ring.Version,
		Synced: members.Ring.Synced, Lost: uint32(members.Ring.Lost), Phase: "none"}
	answer.Leader = m.o.LeaderOf(electedBy)
	switch list := members.Current(); {
	case len(list) == 0:
	case members.Ring.Synced == members.Ring.Version:
		answer.Phase = "synced"
	case m.allHave(members):
		answer.Phase = "syncing"
	default:
		answer.Phase = "updating"
	}
	m.mutex.Lock()
	if who := m.who; who != nil {
		answer.Problems = slices.Clone(who.Blocked())
	}
	m.mutex.Unlock()
	if answer.Leader != m.o.Name && answer.Needed {
		answer.Problems = append(answer.Problems, fmt.Sprintf("controller %s decides, and knows why: ask it if something is not as it should be", answer.Leader))
	}
	progress := map[uint32]uint32{}
	for i := range members.Nodes {
		report, age := m.o.Hub.Nodes.ReplicaReport(members.Nodes[i].Name)
		answer.Nodes = append(answer.Nodes, statusOf(members, &members.Nodes[i], report, age > silentFor))
		for _, sync := range report.GetSyncs() {
			progress[sync.Id] = sync.Permille
		}
	}
	for _, sync := range members.Ring.Ongoing {
		status := &ballastv1.ReplicaSyncStatus{Id: sync.ID, Node: nameOf(members, sync.Node), Permille: progress[sync.ID]}
		for _, number := range sync.To.Of(ring.Nodes(members.Chains().At(members.Current(), sync.Range.Low))) {
			if number != sync.Node {
				status.To = append(status.To, nameOf(members, number))
			}
		}
		answer.Syncs = append(answer.Syncs, status)
	}
	return answer, nil
}

// allHave reports whether all nodes of the ring have its newest version.
func (m *Manager) allHave(members *replica.Members) bool {
	for _, member := range members.Current() {
		if report, _ := m.o.Hub.Nodes.ReplicaReport(nameOf(members, member.Node)); report == nil || report.View != members.Ring.Version {
			return false
		}
	}
	return true
}

// silentFor is after what time without a word a node is called lost.
const silentFor = 5 * time.Second

// statusOf tells how a node stands by its last report; nil: there is none.
func statusOf(members *replica.Members, node *replica.PeerNode, report *ballastv1.ReplicaReport, silent bool) *ballastv1.ReplicaStatus {
	list := members.Current()
	member, on := list.Find(node.Number)
	drained := slices.Contains(members.Drained, node.Name)
	status := &ballastv1.ReplicaStatus{Name: node.Name, Number: uint32(node.Number), Address: node.Address.String(), State: "off"}
	switch {
	case on && drained:
		status.State = "draining"
	case drained:
		status.State = "drained"
	case report == nil || silent:
		status.State = "lost"
	case on:
		status.State = "on"
	}
	if on {
		status.Share, status.Position = list.Share(node.Number), uint32(member.At)
		for _, other := range members.Chains().At(list, member.At) {
			status.Chain = append(status.Chain, nameOf(members, other.Node))
		}
	}
	if report != nil {
		status.Version, status.Entries, status.Answers, status.Capacity = report.View, report.Entries, report.Answers, report.Capacity
		for _, number := range report.Silent {
			status.Silent = append(status.Silent, nameOf(members, uint16(number)))
		}
	}
	return status
}

func nameOf(members *replica.Members, number uint16) string {
	for i := range members.Nodes {
		if members.Nodes[i].Number == number {
			return members.Nodes[i].Name
		}
	}
	return fmt.Sprint("number ", number)
}
