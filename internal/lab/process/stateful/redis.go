// Three commands of Redis, by its protocol (RESP2).
package stateful

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
)

// redis keeps states there. Connections are used again.
type redis struct {
	address string
	mutex   sync.Mutex
	idle    []*redisConn
}

type redisConn struct {
	net.Conn
	said *bufio.Reader
}

func (r *redis) get(ctx context.Context, session string) ([]byte, error) {
	return r.ask(ctx, "GET", session)
}

func (r *redis) put(ctx context.Context, session string, state []byte) error {
	_, err := r.ask(ctx, "SET", session, string(state))
	return err
}

func (r *redis) end(ctx context.Context, session string) error {
	_, err := r.ask(ctx, "DEL", session)
	return err
}

func (r *redis) take(ctx context.Context) (*redisConn, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if last := len(r.idle) - 1; last >= 0 {
		conn := r.idle[last]
		r.idle = r.idle[:last]
		return conn, nil
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.address)
	if err != nil {
		return nil, err
	}
	return &redisConn{conn, bufio.NewReader(conn)}, nil
}

// ask runs a command, and returns what it says: nil for what is not there.
func (r *redis) ask(ctx context.Context, words ...string) ([]byte, error) {
	conn, err := r.take(ctx)
	if err != nil {
		return nil, fmt.Errorf("reach Redis: %w", err)
	}
	answer, err := conn.ask(words)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("%s of Redis: %w", words[0], err)
	}
	r.mutex.Lock()
	r.idle = append(r.idle, conn)
	r.mutex.Unlock()
	return answer, nil
}

func (c *redisConn) ask(words []string) ([]byte, error) {
	var command strings.Builder
	fmt.Fprintf(&command, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(&command, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := io.WriteString(c, command.String()); err != nil {
		return nil, err
	}
	line, err := c.said.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	switch {
	case line == "$-1":
		return nil, nil
	case strings.HasPrefix(line, "+"), strings.HasPrefix(line, ":"):
		return []byte(line[1:]), nil
	case strings.HasPrefix(line, "$"):
		length, err := strconv.Atoi(line[1:])
		if err != nil || length < 0 || length > stateMost {
			return nil, fmt.Errorf("%q", line)
		}
		text := make([]byte, length+len("\r\n"))
		_, err = io.ReadFull(c.said, text)
		return text[:length], err
	}
	return nil, errors.New(line)
}

// Commands is how many the server at an address has carried out.
func Commands(ctx context.Context, address string) (count uint64, err error) {
	text, err := (&redis{address: address}).ask(ctx, "INFO", "stats")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if number, found := strings.CutPrefix(line, "total_commands_processed:"); found {
			return strconv.ParseUint(strings.TrimSpace(number), 10, 64)
		}
	}
	return 0, fmt.Errorf("%q", text)
}
