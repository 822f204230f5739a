// Package member is a member of an etcd cluster, as a process of its own in a lab: what a controller's --etcd leads to.
package member

import (
	"context"
	"fmt"
	"net/url"

	"go.etcd.io/etcd/server/v3/embed"
)

// Options describe the member.
type Options struct {
	Name    string `json:"name"`
	Dir     string `json:"dir"`     // of its data, which outlives the process
	Address string `json:"address"` // that peers and clients reach it at
	Cluster string `json:"cluster"` // NAME=URL of all members, comma-separated
}

// Ports of every member.
const (
	clientPort = 2379
	peerPort   = 2380
)

// ClientURL is where clients find a member.
func ClientURL(address string) string { return fmt.Sprintf("http://%s:%d", address, clientPort) }

// PeerURL is where members find each other.
func PeerURL(address string) string { return fmt.Sprintf("http://%s:%d", address, peerPort) }

// Run serves until ctx ends.
func Run(ctx context.Context, options Options) error {
	peer, err := url.Parse(PeerURL(options.Address))
	if err != nil {
		return fmt.Errorf("address of an etcd member: %w", err)
	}
	client, err := url.Parse(ClientURL(options.Address))
	if err != nil {
		return fmt.Errorf("address of an etcd member: %w", err)
	}
	config := embed.NewConfig()
	config.Name, config.Dir, config.InitialCluster = options.Name, options.Dir, options.Cluster
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	config.LogLevel = "warn"
	config.UnsafeNoFsync = true // processes are killed here, machines are not
	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("start etcd member %s: %w", options.Name, err)
	}
	defer server.Close()
	select {
	case err := <-server.Err():
		return fmt.Errorf("etcd member %s: %w", options.Name, err)
	case <-ctx.Done():
		return nil
	}
}
