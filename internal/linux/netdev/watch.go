package netdev

import (
	"context"
	"fmt"
	"sync/atomic"
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

// Watch calls changed soon after each change of routes, their rules, neighbours, links or addresses in the calling thread's network
// namespace, however steadily they come, and from time to time without, until ctx ends. onlyNeighbours: nothing else has changed. changed
// runs on one goroutine.
func Watch(ctx context.Context, changed func(onlyNeighbours bool)) error {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_NEXTHOP)
	if err != nil {
		return fmt.Errorf("subscribe to network changes: %w", err)
	}
	context.AfterFunc(ctx, socket.Close)
	w := &watch{news: make(chan struct{}, 1)}
	go w.receive(ctx, socket)
	go w.report(ctx, changed)
	return nil
}

type watch struct {
	news   chan struct{}
	others atomic.Bool // not only of neighbours
}

// receive never waits for what is done about the news: the socket's buffer must not overflow meanwhile.
func (w *watch) receive(ctx context.Context, socket *nl.NetlinkSocket) {
	for {
		messages, _, err := socket.Receive()
		if ctx.Err() != nil {
			return
		}
		others, neighbours := err != nil, false // messages were lost; the socket goes on
		for _, message := range messages {
			switch message.Header.Type {
			case unix.RTM_NEWNEIGH:
				neighbours = neighbours || !inProgress(message.Data)
			case unix.RTM_DELNEIGH:
				neighbours = true
			default:
				others = true
			}
		}
		if others {
			w.others.Store(true)
		}
		if others || neighbours {
			select {
			case w.news <- struct{}{}:
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

func (w *watch) report(ctx context.Context, changed func(onlyNeighbours bool)) {
	ticker := time.NewTicker(refresh)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.others.Store(true) // or it was lost
		case <-w.news:
			time.Sleep(settle)
			select { // what came meanwhile is seen now
			case <-w.news:
			default:
			}
		}
		if ctx.Err() != nil {
			return
		}
		changed(!w.others.Swap(false))
	}
}
