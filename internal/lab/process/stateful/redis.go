package stateful

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// inRedis keeps states in Redis.
type inRedis struct{ *redis.Client }

// newRedis keeps them at an address, or where dial leads, if it is not nil.
func newRedis(address string, dial func(ctx context.Context, network, address string) (net.Conn, error)) inRedis {
	return inRedis{redis.NewClient(&redis.Options{Addr: address, Dialer: dial, Protocol: 2, DisableIdentity: true, MaxRetries: -1})}
}

func (r inRedis) get(ctx context.Context, session string) ([]byte, error) {
	state, err := r.Get(ctx, session).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return state, err
}

func (r inRedis) put(ctx context.Context, session string, state []byte) error {
	return r.Set(ctx, session, state, 0).Err()
}

func (r inRedis) end(ctx context.Context, session string) error { return r.Del(ctx, session).Err() }

// Commands is how many the server at the other end of a connection has carried out.
func Commands(ctx context.Context, conn net.Conn) (count uint64, err error) {
	r := newRedis("", func(context.Context, string, string) (net.Conn, error) { return conn, nil })
	defer r.Close()
	text, err := r.Info(ctx, "stats").Result()
	if err != nil {
		return 0, fmt.Errorf("ask Redis for its statistics: %w", err)
	}
	for line := range strings.Lines(text) {
		if number, found := strings.CutPrefix(line, "total_commands_processed:"); found {
			return strconv.ParseUint(strings.TrimSpace(number), 10, 64)
		}
	}
	return 0, fmt.Errorf("%q", text)
}
