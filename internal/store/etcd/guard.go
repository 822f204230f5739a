// In whose name controllers' stores may speak: a member's in its own, which its certificate proves.
package etcd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Implementation constants.
const (
	maxMessage  = 512 << 20 // as etcd's streams take
	maxEnvelope = 64 << 20  // of a snapshot: etcd's snapshotLimitByte

	forgedPause = time.Minute // between two lines of the log
	forgedKept  = time.Hour   // that requests in another's name are a problem after the last one
)

// forged counts requests in the name of another member. The zero value has seen none.
type forged struct {
	mutex  sync.Mutex
	total  uint64
	by, as string // the last one's
	at     time.Time
	logged time.Time
}

func (f *forged) note(log *slog.Logger, by, as string, now time.Time) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.total++
	f.by, f.as, f.at = by, as, now
	if now.Sub(f.logged) >= forgedPause {
		f.logged = now
		log.Error("refused a controller that uses the store as another one", "certificate", by, "as", as, "refused so far", f.total)
	}
}

// problem is empty if there was none of late.
func (f *forged) problem(now time.Time) string {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.total == 0 || now.Sub(f.at) >= forgedKept {
		return ""
	}
	return fmt.Sprintf("whoever has the certificate of controller %s uses the store as controller %s, and is refused (%d times): if that host does not run with a copy of the other's --data-dir, revoke the certificate (\"Lost key\" in docs/run/operate.md)",
		f.by, f.as, f.total)
}

func (f *forged) count() uint64 {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.total
}

// guard answers nobody in the name of a member whose certificate has another name.
func (d *directory) guard(p *Peering, log *slog.Logger, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := p.Caller(r)
		for _, from := range sendersOf(r) {
			id, err := types.IDFromString(from)
			if err != nil {
				http.Error(w, fmt.Sprintf("%q is no member's number", from), http.StatusBadRequest)
				return
			}
			if !d.speaksFor(w, log, caller, id, http.StatusForbidden) {
				return
			}
		}
		from, err := senderOfMessage(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		// Not 403, by which etcd takes it that it was removed, and ends.
		if from != 0 && !d.speaksFor(w, log, caller, from, http.StatusUnauthorized) {
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// speaksFor refuses a caller that is not the member of that number. One that is not known here, or has told no name yet, may be anybody:
// this member may be behind.
func (d *directory) speaksFor(w http.ResponseWriter, log *slog.Logger, caller string, id types.ID, refusal int) bool {
	m := d.server.Load().Cluster().Member(id)
	if m == nil || realName(m.Name) == "" || m.Name == caller {
		return true
	}
	d.forged.note(log, caller, m.Name, time.Now())
	http.Error(w, fmt.Sprintf("the certificate is that of %s: it does not speak for controller %s", caller, m.Name), refusal)
	return false
}

// sendersOf are the numbers that a request names its sender by: in a header, and those for streams in their path.
func sendersOf(r *http.Request) (ids []string) {
	if from := r.Header.Get("X-Server-From"); from != "" {
		ids = append(ids, from)
	}
	if strings.HasPrefix(r.URL.Path, rafthttp.RaftStreamPrefix+"/") {
		ids = append(ids, path.Base(r.URL.Path))
	}
	return ids
}

// senderOfMessage is the member that a message which is posted says to be from; 0: none, or any may be. The request can still be read
// as a whole.
func senderOfMessage(r *http.Request) (types.ID, error) {
	var text []byte
	var err error
	switch {
	case r.Method != http.MethodPost:
		return 0, nil
	case r.URL.Path == rafthttp.RaftPrefix:
		text, err = upTo(r.Body, maxMessage)
		r.Body = io.NopCloser(bytes.NewReader(text))
	case r.URL.Path == rafthttp.RaftSnapshotPrefix:
		var length [8]byte
		if _, err := io.ReadFull(r.Body, length[:]); err != nil {
			return 0, fmt.Errorf("read the length of a message: %w", err)
		}
		size := binary.BigEndian.Uint64(length[:])
		if size > maxEnvelope {
			return 0, fmt.Errorf("the message before a snapshot has %d bytes, more than %d", size, maxEnvelope)
		}
		text, err = upTo(io.LimitReader(r.Body, int64(size)), int64(size))
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(length[:]), bytes.NewReader(text), r.Body))
	default:
		return 0, nil
	}
	var m raftpb.Message
	if err == nil {
		err = proto.Unmarshal(text, &m)
	}
	if err != nil {
		return 0, fmt.Errorf("read a message: %w", err)
	}
	switch m.GetType() {
	case raftpb.MsgProp, raftpb.MsgReadIndex, raftpb.MsgTransferLeader:
		return 0, nil // followers pass them on as they are: what they ask for is anybody's to ask
	}
	return types.ID(m.GetFrom()), nil
}

func upTo(from io.Reader, most int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(from, most+1))
	if err == nil && int64(len(text)) > most {
		err = errors.New("it is too long")
	}
	return text, err
}
