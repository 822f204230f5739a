// Who may be at the other end of the connections between controllers' stores: the member of a name at its address, and nobody else.
package etcd

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
)

// dialTimeout is for a connection and its handshake.
const dialTimeout = 5 * time.Second

// directory knows the members. Until this one has started, they are those that the others listed when it joined.
type directory struct {
	server atomic.Pointer[etcdserver.EtcdServer]
	list   atomic.Pointer[[]Peer]
	forged forged
}

// nameAt returns the name of the member at an address, empty while it has not started yet; false: there is no member.
func (d *directory) nameAt(address string) (name string, is bool) {
	if server := d.server.Load(); server != nil {
		for _, m := range server.Cluster().Members() {
			if addressOf(m.PeerURLs) == address {
				return realName(m.Name), true
			}
		}
	}
	if list := d.list.Load(); list != nil {
		for _, p := range *list {
			if p.Address == address {
				return p.Name, true
			}
		}
	}
	return "", false
}

// realName is empty for what members are called that have reported no name.
func realName(name string) string {
	if strings.HasPrefix(name, nameless) {
		return ""
	}
	return name
}

// dial connects to the member at an address.
func (d *directory) dial(ctx context.Context, p *Peering, address string) (net.Conn, error) {
	name, is := d.nameAt(address)
	if !is {
		return nil, fmt.Errorf("connect to %s: no controller of this fleet is known there", address)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return p.Dial(ctx, name, address)
}
