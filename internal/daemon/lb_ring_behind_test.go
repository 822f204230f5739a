package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/plan"
)

// ringPeer is another load balancer of the ring, of which the test plays what answers pings and what passes a ring on.
type ringPeer struct {
	ballastv1connect.UnimplementedPeerHandler
	number uint16
	view   atomic.Uint32                               // version that its pongs say
	passes atomic.Pointer[ballastv1.SignedReplicaView] // nil: nothing
	pinged atomic.Uint64
	asked  atomic.Uint64
}

func (p *ringPeer) GetRing(context.Context, *ballastv1.GetRingRequest) (*ballastv1.SignedReplicaView, error) {
	p.asked.Add(1)
	if signed := p.passes.Load(); signed != nil {
		return signed, nil
	}
	return nil, connect.NewError(connect.CodeNotFound, errors.New("none"))
}

func newRingPeer(t *testing.T, h *remoteHost, name, address string, number uint16, keys *model.Keys) *ringPeer {
	t.Helper()
	p := &ringPeer{number: number}
	credentials, err := pki.Load(h.tlsDir(), name, pki.LB)
	require(t, err)
	k0, k1 := plan.PeerKey(keys.Cookie[1])
	key := peermessage.Key{K0: k0, K1: k1, Epoch: 1}
	var socket *net.UDPConn
	var listener net.Listener
	require(t, h.peer.Do(func() (err error) {
		socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(address), peermessage.Port)))
		if err == nil {
			listener, err = net.Listen("tcp", address+":7475")
		}
		return err
	}))
	t.Cleanup(func() { socket.Close() })
	mux := http.NewServeMux()
	mux.Handle(ballastv1connect.NewPeerHandler(p))
	go hub.Serve(t.Context(), listener, credentials, nil, mux, nil)
	go func() {
		text := make([]byte, 256)
		for {
			n, from, err := socket.ReadFromUDPAddrPort(text)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			of := func(uint32) (peermessage.Key, bool) { return key, true }
			if m, ok := peermessage.Parse(text[:n]); ok && m.Kind == peermessage.Ping && peermessage.IsGenuine(text[:n], of, 0, number) {
				view := p.view.Load()
				m.Kind, m.Last, m.Owner, m.Proposed = peermessage.Pong, number, uint16(view>>16), uint16(view)
				socket.WriteToUDPAddrPort(m.Append(nil, key, 0, m.Forwarder, false), from)
				p.pinged.Add(1)
			}
		}
	}()
	return p
}

// ringOfThree is a ring of lb1, or without it, and of two others that the test plays.
func ringOfThree(version uint32, incarnation uint64, on bool) *ballastv1.ReplicaView {
	view := ringView(version, incarnation)
	view.Nodes = append(view.Nodes, &ballastv1.ReplicaNode{Number: 9, Name: "lb3", Address: "10.9.0.3:7475", Incarnation: 1, OnRing: true, Life: 1, Position: 1 << 30})
	if view.Nodes[0].OnRing = on; on {
		view.Since = append(view.Since, version)
	}
	return view
}

// signed is a ring as somebody answers for it.
func (h *remoteHost) signed(name string, role pki.Role, kind string, view *ballastv1.ReplicaView) *ballastv1.SignedReplicaView {
	h.t.Helper()
	credentials, err := pki.Load(h.tlsDir(), name, role)
	require(h.t, err)
	text, err := proto.Marshal(view)
	require(h.t, err)
	signed, err := credentials.Sign(kind, text)
	require(h.t, err)
	return &ballastv1.SignedReplicaView{View: signed.Text, Certificate: signed.Certificate, Signature: signed.Signature}
}

// behindHost is a load balancer on a ring of version 5 whose controllers are gone, and the two others.
func behindHost(t *testing.T) (h *remoteHost, state *engine.View, incarnation uint64, two, three *ringPeer) {
	t.Helper()
	h = newReplicaHost(t)
	require(t, pki.Issue(h.tlsDir(), pki.Request{Role: pki.Controller, Name: "revoked"}))
	controller, endControl := h.control(1)
	state = replicatedView(1)
	controller.Topics.SetState(state)
	certificate, err := pki.ReadCertificate(h.tlsDir() + "/revoked.crt")
	require(t, err)
	list := []pki.Revocation{pki.RevocationOf(certificate, time.Now(), "stolen")}
	controller.Topics.SetRevoked(list, list)
	two, three = newRingPeer(t, h, "lb2", "10.9.0.2", 7, &state.Keys), newRingPeer(t, h, "lb3", "10.9.0.3", 9, &state.Keys)
	two.view.Store(5)
	three.view.Store(5)
	h.start()
	incarnation = awaitReport(t, controller, "its entries", func(r *ballastv1.ReplicaReport) bool { return r.Incarnation != 0 && r.Address != "" }).Incarnation
	controller.Topics.SetReplicas(ringOfThree(5, incarnation, true), nil)
	awaitReport(t, controller, "that it takes part", func(r *ballastv1.ReplicaReport) bool { return r.View == 5 && len(r.Heard) == 2 })
	h.await("that it is ready", func(s api.LBStatus) bool { return s.Ready })
	endControl()
	return h, state, incarnation, two, three
}

// stays fails unless the load balancer goes by version 5, and is ready, until something happens n times more.
func stays(t *testing.T, h *remoteHost, what string, happens *atomic.Uint64, n uint64) {
	t.Helper()
	before := happens.Load()
	h.await(what, func(s api.LBStatus) bool {
		if s.Replicas.Version != 5 || !s.Ready {
			t.Fatalf("%s: version %d, ready %v: %v", what, s.Replicas.Version, s.Ready, s.NotReady)
		}
		return happens.Load() >= before+n
	})
}

// With all controllers dead nothing changes the ring, and nobody need leave. Who only claims that there is a newer one makes nobody leave, and gives nobody a ring.
func TestARingIsTakenFromALoadBalancerOnlyAsAControllerHasSignedIt(t *testing.T) {
	t.Parallel()
	h, _, incarnation, two, three := behindHost(t)
	stays(t, h, "no controller", &two.pinged, 10)
	genuine := func() *ballastv1.SignedReplicaView {
		return h.signed("c1", pki.Controller, replica.SignedRing, ringOfThree(9, incarnation, true))
	}
	spoilt := func(spoil func(*ballastv1.SignedReplicaView)) *ballastv1.SignedReplicaView {
		s := genuine()
		spoil(s)
		return s
	}
	two.view.Store(9)
	for what, lie := range map[string]*ballastv1.SignedReplicaView{
		"nothing":                        nil,
		"a ring of its own":              h.signed("lb2", pki.LB, replica.SignedRing, ringOfThree(9, incarnation, true)),
		"one that an agent has signed":   h.signed("s1", pki.Agent, replica.SignedRing, ringOfThree(9, incarnation, true)),
		"one of a revoked controller":    h.signed("revoked", pki.Controller, replica.SignedRing, ringOfThree(9, incarnation, true)),
		"something else that was signed": h.signed("c1", pki.Controller, "something else", ringOfThree(9, incarnation, true)),
		"another version than was signed": spoilt(func(s *ballastv1.SignedReplicaView) {
			s.View = h.signed("lb2", pki.LB, "", ringOfThree(8, incarnation, true)).View
		}),
		"a signature with one bit changed":     spoilt(func(s *ballastv1.SignedReplicaView) { s.Signature[len(s.Signature)-1] ^= 1 }),
		"no signature":                         spoilt(func(s *ballastv1.SignedReplicaView) { s.Signature = nil }),
		"no certificate":                       spoilt(func(s *ballastv1.SignedReplicaView) { s.Certificate = nil }),
		"one that is older":                    h.signed("c1", pki.Controller, replica.SignedRing, ringOfThree(4, incarnation, true)),
		"another one of the same version":      h.signed("c1", pki.Controller, replica.SignedRing, ringOfThree(5, incarnation, false)),
		"what is no ring, though it is signed": h.signed("c1", pki.Controller, replica.SignedRing, &ballastv1.ReplicaView{Version: 9, Nodes: []*ballastv1.ReplicaNode{{Number: 99}}}),
	} {
		two.passes.Store(lie)
		stays(t, h, "the other passes on "+what, &two.asked, 1)
	}
	stays(t, h, "the other has passed on all that", &two.asked, 1)
	three.view.Store(8)
	status := h.await("that it is not ready when most go by a newer ring that it cannot get", func(s api.LBStatus) bool { return !s.Ready })
	if why := strings.Join(status.NotReady, ", "); !strings.Contains(why, "version 5 of the ring, most others by version 8 or newer") {
		t.Error(why)
	}
	three.passes.Store(genuine())
	h.await("that it is ready with that", func(s api.LBStatus) bool { return s.Ready && s.Replicas.Version == 9 && s.Replicas.OnRing })
}

func TestALoadBalancerThatControllersTookOffTheRingIsNotReadyUntilItHearsThem(t *testing.T) {
	t.Parallel()
	h, state, incarnation, two, three := behindHost(t)
	ring := ringOfThree(6, incarnation, false)
	for _, p := range []*ringPeer{two, three} {
		p.passes.Store(h.signed("c1", pki.Controller, replica.SignedRing, ring))
		p.view.Store(6)
	}
	began := time.Now()
	off := func(s api.LBStatus) bool {
		return !s.Ready && s.Replicas != nil && s.Replicas.Version == 6 && strings.Contains(strings.Join(s.NotReady, ", "), "taken this load balancer off the ring, because they do not hear it")
	}
	h.await("that it is off the ring", off)
	t.Logf("not ready after %v", time.Since(began).Round(time.Millisecond))
	lb2, err := pki.Load(h.tlsDir(), "lb2", pki.LB)
	require(t, err)
	answer, err := h.peerOf(lb2).GetRing(t.Context(), &ballastv1.GetRingRequest{})
	if err != nil || !bytes.Equal(answer.View, two.passes.Load().View) && !bytes.Equal(answer.View, three.passes.Load().View) {
		t.Errorf("it passes on %v, %v", answer, err)
	}
	agent, err := pki.Load(h.tlsDir(), "s1", pki.Agent)
	require(t, err)
	if _, err := h.peerOf(agent).GetRing(t.Context(), &ballastv1.GetRingRequest{}); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("an agent is told the ring: %v", err)
	}
	h.kill()
	h.start()
	h.await("that a restart does not make it ready", off)
	controller, _ := h.control(2)
	controller.Topics.SetState(state)
	controller.Topics.SetReplicas(ring, nil)
	h.await("that it is ready when a controller tells it the same", func(s api.LBStatus) bool { return s.Ready && s.Replicas.Version == 6 && !s.Replicas.OnRing })
	await.Nil(t, "that it passes on what the controller has signed", func() error {
		answer, err := h.peerOf(lb2).GetRing(t.Context(), &ballastv1.GetRingRequest{})
		if err == nil && bytes.Equal(answer.Certificate, two.passes.Load().Certificate) {
			err = fmt.Errorf("it is still that of the first controller")
		}
		return err
	})
}
