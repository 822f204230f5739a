// Package apitest has a fleet in memory, for tests of the fleet API and of its clients.
package apitest

import (
	"context"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
)

// Memory is an api.Desired that nobody carries out. The zero value is an empty fleet that makes its own keys.
type Memory struct {
	KeysFromFile bool                   // as a load balancer that runs by a file
	Live         func(id uint16) uint64 // connections of a server; nil: none
	Estimated    bool                   // there are no agents who count them
	Members      []*ballastv1.NodeStatus
	// Interfere, if set, is called once in the middle of a change: what it does is what somebody else does at the same time.
	Interfere func()

	mutex    sync.Mutex
	node     node.Node
	revision uint64
}

var _ api.Desired = (*Memory)(nil)

// Fleet implements api.Desired.
func (m *Memory) Fleet(context.Context) (model.Fleet, uint64, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.node.Running.Clone(), m.revision, nil
}

// Change implements api.Desired: it tries again when the fleet has changed under its hands, as controllers do.
func (m *Memory) Change(_ context.Context, dryRun bool, edit api.Edit) (changes []string, revision uint64, err error) {
	for {
		m.mutex.Lock()
		next, seen, interfere := m.node, m.revision, m.Interfere
		m.Interfere = nil
		m.mutex.Unlock()
		changes, err = next.Change(time.Now(), func(fleet *model.Fleet) error { return edit(fleet, next.Removed) })
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
			m.mutex.Unlock()
			return changes, seen + 1, nil
		}
		m.mutex.Unlock()
	}
}

// Forget implements api.Desired.
func (m *Memory) Forget(_ context.Context, service, server string) (changes []string, revision uint64, err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.node.Removed = slices.Clone(m.node.Removed)
	if err := m.node.Forget(service, server); err != nil {
		return nil, 0, connect.NewError(connect.CodeNotFound, err)
	}
	m.revision++
	return []string{"forgotten"}, m.revision, nil
}

// Servers implements api.Desired: everybody is healthy.
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
			if m.Live != nil {
				status.Connections = m.Live(server.ID)
			}
			list = append(list, status)
		}
		for _, server := range m.node.Lingering(s.Name) {
			list = append(list, &ballastv1.ServerStatus{Service: s.Name, Server: api.ServerToProto(&server), Removed: true, Health: "unknown"})
		}
	}
	return list, nil
}

// Nodes implements api.Desired.
func (m *Memory) Nodes(context.Context) ([]*ballastv1.NodeStatus, error) { return m.Members, nil }

// MakesKeys implements api.Desired.
func (m *Memory) MakesKeys() bool { return !m.KeysFromFile }
