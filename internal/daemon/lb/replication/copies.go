package replication

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Implementation constants of copying.
const (
	copyTimeout   = 10 * time.Second
	entryBytes    = 20      // that an entry takes in a request or answer, at most
	copyBytes     = 1 << 20 // of one request or answer that entries are few in
	copiesAtOnce  = 16
	listenRetries = time.Second
)

// copyKey is a part of a sync on its way to a node.
type copyKey struct {
	sync, number uint32
	to           uint16
}

// do carries out what the machine wants done. The caller holds the lock.
func (r *Replication) do(actions []replica.Action) {
	for _, action := range slices.Clone(actions) { // the next call of the machine uses them again
		switch m := action.Message; {
		case action.Kind != replica.Send:
		case m.Kind == replica.SyncDone:
			if !slices.Contains(r.done, m.Sync) {
				r.done = append(r.done, m.Sync)
			}
		case m.Kind == replica.Copy:
			r.copy(m)
		}
	}
}

// copy sends a part of a sync, unless it is on its way. The caller holds the lock.
func (r *Replication) copy(m replica.Message) {
	key := copyKey{m.Transfer.Sync, m.Transfer.Number, m.To}
	if r.copying[key] {
		return
	}
	at := slices.IndexFunc(r.state.Load().Peers, func(p Peer) bool { return p.Number == m.To })
	if at < 0 {
		return
	}
	peer, machine := r.state.Load().Peers[at], r.machine
	select {
	case r.calls <- func(ctx context.Context) { r.copyTo(ctx, peer, m, key, machine) }:
		r.copying[key] = true
	default: // later
	}
}

// call does what copy wants done, until ctx ends.
func (r *Replication) call(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for range copiesAtOnce {
		running.Go(func() {
			for {
				select {
				case call := <-r.calls:
					call(ctx)
				case <-ctx.Done():
					return
				}
			}
		})
	}
}

// copyBytesMax is of one request or answer. An answer has all that the request lacks of its range, and that goes to others in one request (see
// replica.Node): entries of a whole table at most, as what has more finds no room.
func copyBytesMax(capacity uint64) int { return copyBytes + entryBytes*int(capacity) }

// copyTo sends what a machine wants sent.
func (r *Replication) copyTo(ctx context.Context, peer Peer, m replica.Message, key copyKey, machine *replica.Node) {
	request := &ballastv1.CopyRequest{From: uint32(m.From), To: uint32(m.To), View: m.View, Sync: m.Transfer.Sync, Number: m.Transfer.Number,
		Second: m.Transfer.Second, Low: uint64(m.Transfer.Low), High: uint64(m.Transfer.High)}
	request.Keys, request.Owners = written(m.Transfer.Entries)
	asked, cancel := context.WithTimeout(ctx, copyTimeout)
	defer cancel()
	answer, err := r.client(peer).Copy(asked, request)
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.machine != machine {
		return // it has lost its entries meanwhile
	}
	delete(r.copying, key)
	var entries []replica.Entry
	if err == nil {
		entries, err = read(answer.Keys, answer.Owners)
	}
	if err != nil {
		if ctx.Err() == nil {
			r.Log.Debug("a part of a sync was not taken: it is sent again", "to", peer.Name, "sync", key.sync, "error", err)
		}
		return
	}
	r.do(r.machine.Receive(replica.Message{Kind: replica.CopyAck, From: m.To, To: m.From, View: m.View,
		Transfer: &replica.Transfer{Sync: m.Transfer.Sync, Number: m.Transfer.Number, Entries: entries}}))
	r.observe()
}

// clients are connections to other load balancers.
type clients struct {
	mutex sync.Mutex
	to    map[Peer]ballastv1connect.PeerClient
}

func (r *Replication) client(peer Peer) ballastv1connect.PeerClient {
	r.clients.mutex.Lock()
	defer r.clients.mutex.Unlock()
	if client := r.clients.to[peer]; client != nil {
		return client
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	dial := r.Credentials.Dialer(r.Credentials.To(pki.LB, peer.Name), (&net.Dialer{}).DialContext)
	transport := &http.Transport{DialTLSContext: dial, Protocols: protocols, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true}
	client := ballastv1connect.NewPeerClient(&http.Client{Transport: transport}, "https://"+peer.Address.String(), connect.WithGRPC(), connect.WithReadMaxBytes(copyBytesMax(r.path.ReplicaCapacity())))
	if r.clients.to == nil {
		r.clients.to = map[Peer]ballastv1connect.PeerClient{}
	}
	r.clients.to[peer] = client
	return client
}

// serve takes copies of other load balancers, from when this node has a number until ctx ends.
func (r *Replication) serve(ctx context.Context) {
	said := ""
	for {
		if r.state.Load().Number != 0 {
			why := ""
			if err := r.serveAt(ctx, r.OwnAddress().String()); err != nil && ctx.Err() == nil {
				if why = err.Error(); why != said {
					r.Log.Error("other load balancers cannot copy entries to this one: no load balancer comes onto the ring or leaves it meanwhile", "error", err)
				}
			}
			said = why
			r.cannotListen.Store(&why)
		}
		select {
		case <-time.After(listenRetries):
		case <-ctx.Done():
			return
		}
	}
}

// serveAt serves at an address of this node, as long as it has it.
func (r *Replication) serveAt(ctx context.Context, address string) error {
	listener, err := listen.TCP("take copies of other load balancers", address)
	if err != nil {
		return err
	}
	r.cannotListen.Store(new(string))
	served, cancel := context.WithCancel(ctx)
	defer cancel()
	go r.whileAddress(served, cancel, address)
	if err := hub.Serve(served, listener, r.Credentials, nil, r.handler(), nil); err != nil {
		return fmt.Errorf("take copies of other load balancers: %w", err)
	}
	return nil
}

// whileAddress ends what is served when this node has another address.
func (r *Replication) whileAddress(ctx context.Context, cancel context.CancelFunc, address string) {
	tick := time.NewTicker(listenRetries)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if r.OwnAddress().String() != address {
				cancel()
			}
		case <-ctx.Done():
			return
		}
	}
}

func (r *Replication) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(ballastv1connect.NewPeerHandler(peerAPI{r}, connect.WithReadMaxBytes(copyBytesMax(r.path.ReplicaCapacity())), connect.WithInterceptors()))
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		who, err := hub.Certified(request)
		if err != nil || who.Role != pki.LB {
			http.Error(w, "load balancers copy entries here, and nobody else", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, request.WithContext(context.WithValue(request.Context(), callerKey{}, who.Name)))
	})
}

type callerKey struct{}

// peerAPI is what other load balancers call.
type peerAPI struct{ *Replication }

// Copy takes a part of a sync.
func (p peerAPI) Copy(ctx context.Context, request *ballastv1.CopyRequest) (*ballastv1.CopyResponse, error) {
	entries, err := read(request.Keys, request.Owners)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	for _, entry := range entries {
		if uint64(entry.Key)-request.Low > request.High-request.Low {
			return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("a key is not of the range"))
		}
	}
	r := p.Replication
	caller, _ := ctx.Value(callerKey{}).(string)
	r.mutex.Lock()
	defer r.mutex.Unlock()
	state := r.state.Load()
	from := slices.IndexFunc(state.Peers, func(peer Peer) bool { return uint32(peer.Number) == request.From })
	if from < 0 || state.Peers[from].Name != caller {
		return nil, connect.NewError(connect.CodePermissionDenied, fmt.Errorf("%s is not number %d of the ring here", caller, request.From))
	}
	if r.machine == nil || request.To != uint32(state.Number) {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("this is number %d of the ring, not %d, or has no ring yet", state.Number, request.To))
	}
	actions := r.machine.Receive(replica.Message{Kind: replica.Copy, From: uint16(request.From), To: state.Number, View: request.View, Transfer: &replica.Transfer{
		Sync: request.Sync, Number: request.Number, Second: request.Second, Low: ring.Key(request.Low), High: ring.Key(request.High), Entries: entries}})
	for _, action := range actions {
		if m := action.Message; m.Kind == replica.CopyAck {
			answer := &ballastv1.CopyResponse{}
			answer.Keys, answer.Owners = written(m.Transfer.Entries)
			return answer, nil
		}
	}
	view, _ := r.machine.View()
	return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("not taken: version %d of the ring here, %d there, or the table is full", view, request.View))
}

// GetRing passes on the ring that this node goes by, as a controller has signed it.
func (p peerAPI) GetRing(context.Context, *ballastv1.GetRingRequest) (*ballastv1.SignedReplicaView, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.signed == nil {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no controller has signed a ring for this load balancer since it was started"))
	}
	return p.signed, nil
}

func written(entries []replica.Entry) (keys []uint64, owners []uint32) {
	for _, entry := range entries {
		keys, owners = append(keys, uint64(entry.Key)), append(owners, uint32(entry.Owner))
	}
	return keys, owners
}

// read refuses entries that no table could have.
func read(keys []uint64, owners []uint32) (entries []replica.Entry, err error) {
	if len(keys) != len(owners) {
		return nil, fmt.Errorf("%d keys, %d owners", len(keys), len(owners))
	}
	for i, key := range keys {
		if key < 2 || owners[i] == 0 || owners[i] >= 1<<16 {
			return nil, fmt.Errorf("entry %d: key %#x, owner %d", i, key, owners[i])
		}
		entries = append(entries, replica.Entry{Key: ring.Key(key), Owner: replica.Owner(owners[i])})
	}
	return entries, nil
}
