// What GoBGP says: errors go on to the log, why there is no session is kept for whoever asks.
package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
)

// notes is a slog.Handler. GoBGP tells in its log alone why it gets no session.
type notes struct {
	log      *slog.Logger
	neighbor netip.Addr // that a line is about
	*kept
}

type kept struct {
	mutex sync.Mutex
	lines map[netip.Addr]string
}

func newNotes(log *slog.Logger) *notes {
	return &notes{log: log, kept: &kept{lines: map[netip.Addr]string{}}}
}

// last is why a neighbour has no session; empty: it is not known.
func (k *kept) last(neighbor netip.Addr) string {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	return k.lines[neighbor]
}

func (k *kept) forget(neighbor netip.Addr) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	delete(k.lines, neighbor)
}

func (n *notes) Enabled(context.Context, slog.Level) bool { return true }

func (n *notes) WithGroup(string) slog.Handler { return n }

func (n *notes) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *n
	for _, a := range attrs {
		next.about(a)
	}
	return &next
}

func (n *notes) about(a slog.Attr) {
	if a.Key == "Key" {
		if address, err := netip.ParseAddr(a.Value.String()); err == nil {
			n.neighbor = address
		}
	}
}

// Handle is of slog.Handler.
func (n *notes) Handle(_ context.Context, record slog.Record) error {
	line, values, args := *n, map[string]string{}, []any{}
	record.Attrs(func(a slog.Attr) bool {
		line.about(a)
		values[a.Key] = a.Value.String()
		args = append(args, strings.ToLower(a.Key), a.Value.String())
		return true
	})
	why := reason(record.Message, values)
	if line.neighbor.IsValid() && why != "" {
		n.mutex.Lock()
		n.lines[line.neighbor] = why
		n.mutex.Unlock()
	}
	if record.Level >= slog.LevelError {
		n.log.Error("BGP: "+record.Message, append(args, "neighbor", line.neighbor)...)
	}
	return nil
}

// reason is what a line of GoBGP's says of why there is no session; empty: nothing.
func reason(message string, values map[string]string) string {
	switch message {
	case "failed to connect":
		return "cannot connect: " + values["Error"]
	case "outgoing connection IO error":
		return "it has closed the connection without a word: does it know this load balancer's address, AS and password?"
	case "sent notification":
		return "refused: " + notification(values["Code"], values["Subcode"])
	case "received notification":
		return "it says: " + notification(values["Code"], values["Subcode"])
	case "hold timer expired":
		return "it was silent for hold_time"
	case "Session will be reset due to malformed BGP Header", "Session will be reset due to malformed BGP message":
		return "it sent what is not BGP: " + values["Error"]
	}
	return ""
}

// notification names what RFC 4271, 4486, 8538 and 9384 number.
func notification(code, subcode string) string {
	for _, key := range []string{code + "/" + subcode, code} {
		if name, known := notifications[key]; known {
			return name + " (" + code + "/" + subcode + ")"
		}
	}
	return fmt.Sprintf("notification %s/%s", code, subcode)
}

var notifications = map[string]string{
	"1": "message header error", "2": "OPEN message error", "2/2": "it is in another AS than configured", "2/3": "bad BGP identifier: two routers have the same router_id",
	"2/6": "unacceptable hold time", "2/7": "unsupported capability", "3": "UPDATE message error", "4": "hold timer expired", "5": "unexpected message: it refused this load balancer, or uses another protocol",
	"6": "cease", "6/1": "too many prefixes", "6/2": "administrative shutdown", "6/3": "peer is not configured any more", "6/4": "administrative reset",
	"6/5": "connection rejected: it does not know this load balancer", "6/6": "other configuration change", "6/7": "connection collision", "6/9": "hard reset", "6/10": "BFD is down",
}
