// Who asks a daemon for something.
package api

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"os/user"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Caller is who asks, as far as the connection proves it.
type Caller struct {
	Name    string `json:"name"`              // of the certificate; of a local socket, its user, and who logged in where that is another one
	Role    string `json:"role"`              // of the certificate, "local" for a local socket, "controller" for what controllers do by themselves
	Address string `json:"address,omitempty"` // where the request came from
	Comment string `json:"comment,omitempty"` // why, as the caller says

	Certificate *x509.Certificate `json:"-"` // nil: a local socket, or nobody who asks
}

// LogValue implements slog.LogValuer.
func (c Caller) LogValue() slog.Value {
	attributes := []slog.Attr{slog.String("name", c.Name), slog.String("role", c.Role), slog.String("address", c.Address)}
	if c.Comment != "" {
		attributes = append(attributes, slog.String("comment", c.Comment))
	}
	return slog.GroupValue(attributes...)
}

type callerKey struct{}

// WithCaller returns a context for what somebody asks for.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns who asks; ok is false if nobody does: a daemon acts by itself.
func CallerOf(ctx context.Context) (c Caller, ok bool) {
	c, ok = ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// CallerName is who asks, for a log.
func CallerName(ctx context.Context) string {
	if by, ok := CallerOf(ctx); ok {
		return fmt.Sprintf("ctl, %s, %s", by.Name, by.Address)
	}
	return "itself"
}

type socketKey struct{}

// SocketOf returns the unix socket that a request came by; nil: it came by none.
func SocketOf(ctx context.Context) *net.UnixConn {
	socket, _ := ctx.Value(socketKey{}).(*net.UnixConn)
	return socket
}

// localCaller is for http.Server.ConnContext of a unix socket: the kernel says which process connected.
func localCaller(ctx context.Context, connection net.Conn) context.Context {
	c := Caller{Name: "unknown", Role: "local"}
	if socket, ok := connection.(*net.UnixConn); ok {
		ctx = context.WithValue(ctx, socketKey{}, socket)
		if raw, err := socket.SyscallConn(); err == nil {
			var peer *unix.Ucred
			if raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) == nil && err == nil {
				c.Name, c.Address = localName(peer), fmt.Sprintf("pid %d", peer.Pid)
			}
		}
	}
	return WithCaller(ctx, c)
}

// noLogin is the login user of a process that nobody's login began (AUDIT_UID_UNSET).
const noLogin = math.MaxUint32

// localName names the user of a process, and the one who logged in if that is another: sudo and su change the first, and only a
// process with CAP_AUDIT_CONTROL changes the second.
func localName(peer *unix.Ucred) string {
	name := fmt.Sprintf("uid %d", peer.Uid)
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/loginuid", peer.Pid))
	if err != nil { // a kernel without auditing, or the process has ended
		return name
	}
	login, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 32)
	if err != nil || login == noLogin || uint32(login) == peer.Uid {
		return name
	}
	who := fmt.Sprintf("uid %d", login)
	if known, err := user.LookupId(fmt.Sprint(login)); err == nil {
		who = known.Username
	}
	return who + " as " + name
}
