// The end: routers are told before the data path goes.
package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/bfd"
	"github.com/ballast-lb/ballast/internal/model"
)

// withdrawPatience is how long a router may take to answer, who would keep the routes of a daemon that has ended.
const withdrawPatience = 10 * time.Second

// withdrawTime is what a router has for what it has heard: BGP has no answer for that.
const withdrawTime = 2 * time.Second

// Withdraw makes routers forget what a daemon has announced that runs no more: they have kept the routes (RFC 4724), and give them up when it is
// back without any. An error names those that did not answer: they give them up after restart_time.
func Withdraw(ctx context.Context, pins string, conf *model.BGP, log *slog.Logger) error {
	if err := bfd.Remove(pins); err != nil { // who goes by BFD notices by that alone
		return err
	}
	password, err := readPassword(conf.PasswordFile)
	if err != nil {
		return fmt.Errorf("withdraw: %w", err)
	}
	id, err := routerID(conf)
	if err != nil {
		return fmt.Errorf("withdraw: %w", err)
	}
	changed := make(chan struct{}, 1)
	s, err := startSpeaker(conf, password, id, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}, log)
	if err != nil {
		return fmt.Errorf("withdraw: %w", err)
	}
	defer s.end(false)
	if err := s.follow(conf, password, false); err != nil {
		return fmt.Errorf("withdraw: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, withdrawPatience)
	defer cancel()
	for {
		var waits []netip.Addr
		for _, n := range s.sessions() {
			if !n.established {
				waits = append(waits, n.Address)
			}
		}
		if len(waits) == 0 {
			return settle(ctx)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("withdraw: %v did not answer: they may send packets here until restart_time (%s) has passed", waits, conf.RestartTime)
		}
	}
}

func settle(ctx context.Context) error {
	select {
	case <-time.After(withdrawTime):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("withdraw: %w", context.Cause(ctx))
	}
}
