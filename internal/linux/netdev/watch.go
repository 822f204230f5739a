package netdev

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// How long Watch collects changes before it reports them, and how often it reports without any: neighbours need
// confirmation, and a lost netlink message must not stay lost.
const (
	settle  = 20 * time.Millisecond
	refresh = 5 * time.Second
)

// Watch calls changed soon after each change of routes, neighbours, links or addresses in the calling thread's network namespace,
// however steadily they come, and from time to time without, until ctx ends. changed runs on one goroutine.
func Watch(ctx context.Context, changed func()) error {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return fmt.Errorf("subscribe to network changes: %w", err)
	}
	context.AfterFunc(ctx, socket.Close)
	news := make(chan struct{}, 1)
	go receive(ctx, socket, news)
	go report(ctx, news, changed)
	return nil
}

// receive never waits for what is done about the news: the socket's buffer must not overflow meanwhile.
func receive(ctx context.Context, socket *nl.NetlinkSocket, news chan<- struct{}) {
	for {
		messages, _, err := socket.Receive()
		if ctx.Err() != nil {
			return
		}
		matters := err != nil // messages were lost; the socket goes on
		for _, message := range messages {
			matters = matters || message.Header.Type != unix.RTM_NEWNEIGH || !inProgress(message.Data)
		}
		if matters {
			select {
			case news <- struct{}{}:
			default:
			}
		}
		if err != nil {
			time.Sleep(settle)
		}
	}
}

// inProgress says that a neighbour is about to be resolved: more news will follow.
func inProgress(message []byte) bool {
	neighbour, err := netlink.NeighDeserialize(message)
	return err == nil && neighbour.State&(usable|netlink.NUD_FAILED) == 0
}

func report(ctx context.Context, news <-chan struct{}, changed func()) {
	ticker := time.NewTicker(refresh)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-news:
			time.Sleep(settle)
			select { // what came meanwhile is seen now
			case <-news:
			default:
			}
		}
		if ctx.Err() != nil {
			return
		}
		changed()
	}
}
