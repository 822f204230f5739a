// Package apitest has a fleet in memory, for tests of the fleet API and of its clients.
package apitest

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Memory is an api.Desired that nobody carries out. The zero value is an empty fleet that makes its own keys.
type Memory struct {
	KeysFromFile bool                   // as a load balancer that runs by a file
	Live         func(id uint16) uint64 // connections of a server; nil: none, or not known where they are estimated
	Estimated    bool                   // there are no agents who count them
	Activity     func() uint64          // of all servers; nil: nobody speaks to them
	Members      []*ballastv1.NodeStatus
	Predecessors map[string]uint64                  // connections that went on to them, by service
	Explanations []*ballastv1.Explanation           // of any packet
	Unhealthy    map[string]bool                    // servers, by name
	Starting     map[string]*ballastv1.ServerStatus // servers, by name: their SlowStart and WholeAt
	Holders      func(*model.Fleet) *rotation.Nodes // of keys; nil: everybody has what there is, and no connection lives
	// Interfere, if set, is called once in the middle of a change: what it does is what somebody else does at the same time.
	Interfere func()
	Stale     error // why what is told may be old
	Past      []*ballastv1.FleetChange
	Fleets    map[uint64]model.Fleet           // by their revision
	Ring      *ballastv1.ListReplicasResponse  // nil: there is none
	Named     []*ballastv1.SourceStatus        // of services whose servers a source names
	Tickets   ballastv1.ListTicketKeysResponse // of which keys are used as they are asked for
	Revoked   []pki.Revocation

	mutex    sync.Mutex
	node     fleet.Desired
	revision uint64
	before   map[uint64]model.Fleet // by revision
}

var _ api.Desired = (*Memory)(nil)

// Set changes what is told while requests may be answered: those of clients that have given up, too.
func (m *Memory) Set(change func()) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	change()
}

// Fleet implements api.Desired.
func (m *Memory) Fleet(context.Context) (model.Fleet, uint64, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.node.Running.Clone(), m.revision, nil
}

// FleetAt implements api.Desired.
func (m *Memory) FleetAt(_ context.Context, revision uint64) (model.Fleet, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if fleet, ok := m.before[revision]; ok {
		return fleet.Clone(), nil
	}
	return model.Fleet{}, connect.NewError(connect.CodeNotFound, fmt.Errorf("the history has no revision %d", revision))
}

// Newest implements api.Desired.
func (m *Memory) Newest(ctx context.Context) (revision uint64, err error) {
	if _, revision, err = m.Fleet(ctx); m.Stale != nil {
		err = &api.Unconfirmed{Why: m.Stale}
	}
	return revision, err
}

// PredecessorConnections implements api.Desired.
func (m *Memory) PredecessorConnections(service string) fleet.Connections {
	return fleet.Connections{Live: m.Predecessors[service], Known: true}
}

// History implements api.Desired.
func (m *Memory) History(context.Context) ([]*ballastv1.FleetChange, error) { return m.Past, nil }

// Change implements api.Desired: it tries again when the fleet has changed under its hands, as controllers do.
func (m *Memory) Change(_ context.Context, dryRun bool, edit fleet.Edit) (changes []string, revision uint64, err error) {
	for {
		m.mutex.Lock()
		next, seen, interfere := m.node, m.revision, m.Interfere
		m.Interfere = nil
		m.mutex.Unlock()
		next.Recall(next.Overridden())
		changes, err = next.Change(time.Now(), edit)
		if err != nil || dryRun {
			return changes, seen, err
		}
		if interfere != nil {
			interfere()
		}
		m.mutex.Lock()
		if m.revision == seen {
			m.node = next
			m.revision++
			if m.before == nil {
				m.before = map[uint64]model.Fleet{}
			}
			m.before[m.revision] = next.Running.Clone()
			m.mutex.Unlock()
			return changes, seen + 1, nil
		}
		m.mutex.Unlock()
	}
}

// Replicas implements api.Desired.
func (m *Memory) Replicas(context.Context) (*ballastv1.ListReplicasResponse, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.Ring == nil {
		return &ballastv1.ListReplicasResponse{Phase: "none", Needed: m.node.Running.Replicated()}, nil
	}
	return proto.CloneOf(m.Ring), nil
}

// TicketKeys implements api.Desired.
func (m *Memory) TicketKeys(context.Context) (*ballastv1.ListTicketKeysResponse, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return proto.CloneOf(&m.Tickets), nil
}

// UseTicketKey implements api.Desired: it is refused while servers are behind.
func (m *Memory) UseTicketKey(_ context.Context, dryRun bool, epoch uint32, force bool) (changes []string, revision uint64, err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if epoch == 0 {
		epoch = m.Tickets.Current + 1
	}
	if !force && len(m.Tickets.Behind) > 0 {
		return nil, 0, api.Unready(m.Tickets.Behind)
	}
	changes = []string{fmt.Sprintf("ticket keys: epoch %d is used in place of %d", epoch, m.Tickets.Current)}
	if dryRun {
		return changes, m.revision, nil
	}
	m.Tickets.Current = epoch
	m.revision++
	return changes, m.revision, nil
}

// RevokeTicketKeys implements api.Desired.
func (m *Memory) RevokeTicketKeys(_ context.Context, dryRun bool, newest uint32) (changes []string, revision uint64, err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if keys := m.Tickets.Keys; newest != 0 && len(keys) > 0 && keys[0].Epoch > newest {
		return nil, m.revision, nil
	}
	if !dryRun {
		m.Tickets = ballastv1.ListTicketKeysResponse{Needed: true, Current: 9, Keys: []*ballastv1.TicketKeyStatus{{Epoch: 9}}}
		m.revision++
	}
	return []string{"ticket keys: all before epoch 9 are revoked"}, m.revision, nil
}

// RevokeCertificate implements api.Desired: whatever is asked for.
func (m *Memory) RevokeCertificate(_ context.Context, r *ballastv1.RevokeCertificateRequest) (*ballastv1.ChangeResponse, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	entry := pki.Revocation{Serial: r.Serial, Name: r.Name, At: time.Now(), Reason: r.Reason}
	if len(r.Certificate) > 0 {
		certificate, err := x509.ParseCertificate(r.Certificate)
		if err != nil {
			return nil, err
		}
		entry = pki.RevocationOf(certificate, time.Now(), r.Reason)
	}
	warnings := []string{"nobody accepts " + entry.What() + " any more"}
	if !r.Force && !r.DryRun {
		return nil, api.Dangerous(warnings)
	}
	if !r.DryRun {
		m.Revoked = append(m.Revoked, entry)
		m.revision++
	}
	return &ballastv1.ChangeResponse{Changes: []string{"revoked: " + entry.What()}, Revision: m.revision, Warnings: warnings}, nil
}

// Revocations implements api.Desired.
func (m *Memory) Revocations(context.Context) ([]pki.Revocation, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return slices.Clone(m.Revoked), nil
}

// DrainReplica implements api.Desired: it is done at once.
func (m *Memory) DrainReplica(_ context.Context, dryRun bool, name string, off bool) (changes []string, revision uint64, err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, n := range m.Ring.GetNodes() {
		if n.Name != name {
			continue
		}
		state, what := "on", "comes onto the ring again"
		if off {
			state, what = "drained", "leaves the ring"
		}
		if n.State != state {
			changes = []string{fmt.Sprintf("replicas: %s %s", name, what)}
		}
		if n.State != state && !dryRun {
			n.State = state
			m.revision++
		}
		return changes, m.revision, nil
	}
	return nil, 0, connect.NewError(connect.CodeNotFound, fmt.Errorf("no load balancer %q has come to the ring: see `ballast ctl replica list`", name))
}

// Forget implements api.Desired.
func (m *Memory) Forget(_ context.Context, dryRun bool, service, server string) (changes []string, revision uint64, err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	next := m.node
	if changes, err = next.Forget(service, server); err != nil {
		return nil, 0, connect.NewError(connect.CodeNotFound, err)
	}
	if !dryRun {
		m.node = next
		m.revision++
	}
	return changes, m.revision, nil
}

// Servers implements api.Desired: everybody else is healthy.
func (m *Memory) Servers(_ context.Context, service string) (list []*ballastv1.ServerStatus, err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for i := range m.node.Running.Services {
		s := &m.node.Running.Services[i]
		if service != "" && service != s.Name {
			continue
		}
		for j := range s.Servers {
			server := &s.Servers[j]
			status := &ballastv1.ServerStatus{Service: s.Name, Server: api.ServerToProto(server), Health: "healthy", LoadSource: "connections",
				Weight: uint32(server.Weight), ConnectionsExact: !m.Estimated}
			if m.Unhealthy[server.Name] {
				status.Health = "unhealthy"
			}
			if m.Live != nil {
				status.Connections = new(m.Live(server.ID))
			} else if !m.Estimated {
				status.Connections = new(uint64)
			}
			if start := m.Starting[server.Name]; start != nil {
				status.SlowStart, status.WholeAt = start.SlowStart, start.WholeAt
			}
			if m.Activity != nil {
				status.Activity = m.Activity()
			}
			list = append(list, status)
		}
		for _, server := range m.node.Lingering(s.Name) {
			status := &ballastv1.ServerStatus{Service: s.Name, Server: api.ServerToProto(&server), Removed: true, Health: "unknown", ConnectionsExact: !m.Estimated}
			if m.Live != nil {
				status.Connections = new(m.Live(server.ID))
			} else if !m.Estimated {
				status.Connections = new(uint64)
			}
			list = append(list, status)
		}
	}
	return list, nil
}

// Sources implements api.Desired.
func (m *Memory) Sources(service string) (list []*ballastv1.SourceStatus) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, one := range m.Named {
		if service == "" || one.Service == service {
			list = append(list, proto.CloneOf(one))
		}
	}
	return list
}

// Explain implements api.Desired: nobody is asked, and says so.
func (m *Memory) Explain(context.Context, *ballastv1.MadeUpPacket) ([]*ballastv1.Explanation, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.Explanations, nil
}

// LostLoadBalancers implements api.Desired.
func (m *Memory) LostLoadBalancers() (names []string) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, n := range m.Members {
		if n.Role == "lb" && n.Ready == "lost" {
			names = append(names, n.Name)
		}
	}
	return names
}

// Nodes implements api.Desired.
func (m *Memory) Nodes(context.Context) ([]*ballastv1.NodeStatus, error) { return m.Members, nil }

// ForgetNode implements api.Desired.
func (m *Memory) ForgetNode(_ context.Context, dryRun bool, name string, role pki.Role) ([]string, error) {
	at := slices.IndexFunc(m.Members, func(n *ballastv1.NodeStatus) bool {
		return n.Name == name && n.Ready == "lost" && (role == "" || n.Role == string(role))
	})
	if at < 0 {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("not lost"))
	}
	if !dryRun {
		m.Members = slices.Delete(m.Members, at, at+1)
	}
	return []string{name + ": forgotten"}, nil
}

// KeyNodes implements api.Desired.
func (m *Memory) KeyNodes() *rotation.Nodes {
	m.mutex.Lock()
	fleet := m.node.Running.Clone()
	m.mutex.Unlock()
	if m.Holders != nil {
		return m.Holders(&fleet)
	}
	return AllHold(&fleet, 0)
}

// AllHold are a load balancer and an agent for all servers, which have the fleet's keys; so many connections live on the oldest.
func AllHold(fleet *model.Fleet, connections uint64) *rotation.Nodes {
	epochs := fleet.Keys.Epochs()
	report := &rotation.Report{Epochs: epochs, Current: fleet.Keys.Current, Connections: map[uint32]uint64{}}
	if len(epochs) > 0 {
		report.Connections[epochs[0]] = connections
	}
	agent := rotation.Node{Agent: true, Name: "agent", Report: report}
	for i := range fleet.Services {
		for _, server := range fleet.Services[i].Servers {
			agent.Addresses = append(agent.Addresses, server.Address)
		}
	}
	return &rotation.Nodes{Keys: fleet.Keys, List: []rotation.Node{{Name: "lb", HasKeys: true}, agent}}
}

// MakesKeys implements api.Desired.
func (m *Memory) MakesKeys() bool { return !m.KeysFromFile }
