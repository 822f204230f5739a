// Who reads a trace.
package tracing

import (
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Implementation constants of readers.
const (
	// patience is how long a reader may leave unread what it was sent: a process that is stopped, or whose terminal is, would keep the trace on.
	patience = 5 * time.Second
	// unread is how many bytes of the socket, with what the kernel needs for them, may wait: a dozen events.
	unread = 8 << 10
)

// reader is the process that a trace is for.
type reader struct {
	socket *net.UnixConn // nil: its reading is not followed
	wrote  atomic.Int64  // when it was sent something last, in ns
}

func newReader(socket *net.UnixConn) *reader {
	r := &reader{socket: socket}
	r.sent()
	if socket != nil {
		_ = socket.SetWriteBuffer(unread) // else it is noticed later
	}
	return r
}

// sent takes note that everything was written.
func (r *reader) sent() { r.wrote.Store(time.Now().UnixNano()) }

// stands reports whether the reader takes nothing: something was sent long ago, and is not read yet.
func (r *reader) stands(now time.Time) bool {
	return r.socket != nil && now.UnixNano()-r.wrote.Load() >= int64(patience) && r.waiting() > 0
}

// waiting is how much of what was sent is not read yet.
func (r *reader) waiting() (bytes int) {
	raw, err := r.socket.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { bytes, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	if err != nil {
		return 0
	}
	return bytes
}
