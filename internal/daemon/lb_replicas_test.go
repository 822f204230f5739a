package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/plan"
)

// replicatedView is a state with one service whose connections are replicated.
func replicatedView(revision uint64) *engine.View {
	view := viewOf(revision, nil, 2, 3)
	s := &view.Services[0].Service
	s.Protocol, s.Affinity, s.Fallback, s.Dispatch = model.ProtocolUDP, model.AffinityReplicated, model.FallbackHash, model.DispatchRR
	return view
}

// ringView is a ring of the load balancer, number 3, and of the test, number 7.
func ringView(version uint32, incarnation uint64) *ballastv1.ReplicaView {
	return &ballastv1.ReplicaView{Revision: uint64(version), Version: version, Synced: version, Chain: 2, IdleTimeout: durationpb.New(10 * time.Minute), Since: []uint32{version, version}, Nodes: []*ballastv1.ReplicaNode{
		{Number: 3, Name: "lb1", Address: "10.9.0.1:7475", Incarnation: incarnation, OnRing: true, Life: 1},
		{Number: 7, Name: "lb2", Address: "10.9.0.2:7475", Incarnation: 1, OnRing: true, Life: 1, Position: 1 << 31},
	}}
}

// awaitReport waits for what the load balancer says of the ring.
func awaitReport(t *testing.T, controller *hub.Hub, what string, wanted func(*ballastv1.ReplicaReport) bool) (report *ballastv1.ReplicaReport) {
	t.Helper()
	await.Nil(t, what, func() error {
		var age time.Duration
		if report, age = controller.Nodes.ReplicaReport("lb1"); report == nil || age > 3*time.Second || !wanted(report) {
			return fmt.Errorf("it says %v", report)
		}
		return nil
	})
	return report
}

func newReplicaHost(t *testing.T) *remoteHost {
	t.Helper()
	h := newRemoteHost(t)
	for _, r := range []pki.Request{{Role: pki.LB, Name: "lb2"}, {Role: pki.LB, Name: "lb3"}, {Role: pki.Agent, Name: "s1"}} {
		require(t, pki.Issue(h.tlsDir(), r))
	}
	return h
}

func TestALoadBalancerIsOnTheRingWithTheEntriesThatControllersKnowOf(t *testing.T) {
	t.Parallel()
	h := newReplicaHost(t)
	controller, endControl := h.control(1)
	controller.Topics.SetState(replicatedView(1))
	h.start()
	h.await("that it waits to be told of the ring", func(s api.LBStatus) bool {
		return !s.Ready && slices.ContainsFunc(s.NotReady, func(why string) bool { return strings.Contains(why, "load balancers with replicated entries") })
	})
	first := awaitReport(t, controller, "its address and entries", func(r *ballastv1.ReplicaReport) bool {
		return r.Address == "10.9.0.1:7475" && r.Incarnation != 0 && r.View == 0 && r.Capacity > 1000
	})
	controller.Topics.SetReplicas(ringView(5, first.Incarnation+1), nil)
	h.await("that it is ready", func(s api.LBStatus) bool { return s.Ready })
	awaitReport(t, controller, "that it takes no part with other entries than controllers think", func(r *ballastv1.ReplicaReport) bool { return len(r.Silent) == 1 && r.View == 0 })
	controller.Topics.SetReplicas(ringView(6, first.Incarnation), nil)
	awaitReport(t, controller, "that it takes part", func(r *ballastv1.ReplicaReport) bool { return r.View == 6 && r.Synced == 6 })
	for what, spoil := range map[string]func(*ballastv1.ReplicaView){
		"an older version":       func(v *ballastv1.ReplicaView) { v.Version = 4; v.Nodes[1].Name = "old" },
		"an older document":      func(v *ballastv1.ReplicaView) { v.Version, v.Revision = 6, 2; v.Nodes[1].Name = "older" },
		"nobody on the ring":     func(v *ballastv1.ReplicaView) { v.Nodes[0].OnRing, v.Nodes[1].OnRing = false, false },
		"no address":             func(v *ballastv1.ReplicaView) { v.Nodes[1].Address = "lb2:7475" },
		"a number out of range":  func(v *ballastv1.ReplicaView) { v.Nodes[1].Number = 64 },
		"number 0":               func(v *ballastv1.ReplicaView) { v.Nodes[1].Number = 0 },
		"a name twice":           func(v *ballastv1.ReplicaView) { v.Nodes[1].Name = "lb1" },
		"one position":           func(v *ballastv1.ReplicaView) { v.Nodes[1].Position = 0 },
		"too few versions":       func(v *ballastv1.ReplicaView) { v.Since = v.Since[1:] },
		"chains of five":         func(v *ballastv1.ReplicaView) { v.Chain = 5 },
		"chains of none":         func(v *ballastv1.ReplicaView) { v.Chain = 0 },
		"an idle timeout of 1 s": func(v *ballastv1.ReplicaView) { v.IdleTimeout = durationpb.New(time.Second) },
	} {
		view := ringView(9, first.Incarnation)
		spoil(view)
		controller.Topics.SetReplicas(view, nil)
		controller.Topics.SetReplicas(ringView(6, first.Incarnation), nil)
		awaitReport(t, controller, "that it stays as it was after "+what, func(r *ballastv1.ReplicaReport) bool { return r.View == 6 && len(r.Silent) == 1 && r.Silent[0] == 7 })
	}
	h.kill()
	endControl()
	h.start()
	other, _ := h.control(2)
	other.Topics.SetState(replicatedView(2))
	awaitReport(t, other, "that it goes on after a restart, without being told", func(r *ballastv1.ReplicaReport) bool { return r.View == 6 && r.Incarnation == first.Incarnation })
	h.await("that it is ready at once", func(s api.LBStatus) bool { return s.Ready })

	h.kill()
	require(t, os.RemoveAll(filepath.Join(h.runDir(), "bpf", "test")))
	h.start()
	awaitReport(t, other, "that it says when it has lost its entries", func(r *ballastv1.ReplicaReport) bool {
		return r.View == 0 && r.Incarnation != 0 && r.Incarnation != first.Incarnation
	})
}

// peerOf calls what load balancers call each other by, from the other end of the link.
func (h *remoteHost) peerOf(credentials *pki.Credentials) ballastv1connect.PeerClient {
	config := credentials.To(pki.LB, "lb1")
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, DialContext: func(ctx context.Context, network, address string) (connection net.Conn, err error) {
		err = h.peer.Do(func() (err error) {
			connection, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return connection, err
	}}
	h.t.Cleanup(transport.CloseIdleConnections)
	return ballastv1connect.NewPeerClient(&http.Client{Transport: transport}, "https://10.9.0.1:7475", connect.WithGRPC())
}

func TestOnlyLoadBalancersOfTheRingCopyEntriesAndOnlyWhatMakesSense(t *testing.T) {
	t.Parallel()
	h := newReplicaHost(t)
	controller, _ := h.control(1)
	controller.Topics.SetState(replicatedView(1))
	h.start()
	report := awaitReport(t, controller, "its entries", func(r *ballastv1.ReplicaReport) bool { return r.Incarnation != 0 && r.Address != "" })
	view := ringView(5, report.Incarnation)
	view.Synced = 4
	controller.Topics.SetReplicas(view, nil)
	awaitReport(t, controller, "that it takes part", func(r *ballastv1.ReplicaReport) bool { return r.View == 5 })
	clients := map[string]ballastv1connect.PeerClient{}
	for name, role := range map[string]pki.Role{"lb2": pki.LB, "lb3": pki.LB, "s1": pki.Agent, "c1": pki.Controller} {
		credentials, err := pki.Load(h.tlsDir(), name, role)
		require(t, err)
		clients[name] = h.peerOf(credentials)
	}
	part := &ballastv1.CopyRequest{From: 7, To: 3, View: 5, Sync: 1, Number: 1, Low: 1 << 32, High: 2<<32 - 1, Keys: []uint64{1<<32 + 5, 1<<32 + 9}, Owners: []uint32{2, 3}}
	await.Nil(t, "it listens", func() error {
		_, err := clients["lb2"].Copy(t.Context(), part)
		return err
	})
	if _, err := clients["lb2"].Copy(t.Context(), part); err != nil {
		t.Errorf("the same again: %v", err)
	}
	for what, one := range map[string]struct {
		by     string
		change func(*ballastv1.CopyRequest)
		code   connect.Code
	}{
		"a load balancer that is not on the ring":       {"lb3", nil, connect.CodePermissionDenied},
		"one in the name of another":                    {"lb3", func(r *ballastv1.CopyRequest) { r.From = 3 }, connect.CodePermissionDenied},
		"an agent":                                      {"s1", nil, connect.CodePermissionDenied},
		"a controller":                                  {"c1", nil, connect.CodePermissionDenied},
		"what is for another":                           {"lb2", func(r *ballastv1.CopyRequest) { r.To = 4 }, connect.CodeFailedPrecondition},
		"another version":                               {"lb2", func(r *ballastv1.CopyRequest) { r.View = 4 }, connect.CodeFailedPrecondition},
		"more keys than owners":                         {"lb2", func(r *ballastv1.CopyRequest) { r.Owners = r.Owners[1:] }, connect.CodeInvalidArgument},
		"a key that no table can have":                  {"lb2", func(r *ballastv1.CopyRequest) { r.Keys[0] = 1 }, connect.CodeInvalidArgument},
		"an owner that no table can have":               {"lb2", func(r *ballastv1.CopyRequest) { r.Owners[0] = 1 << 16 }, connect.CodeInvalidArgument},
		"a key outside of the range, by a peer's fault": {"lb2", func(r *ballastv1.CopyRequest) { r.Keys[1] = 2 << 32 }, connect.CodeInvalidArgument},
	} {
		request := proto.CloneOf(part)
		if one.change != nil {
			one.change(request)
		}
		if _, err := clients[one.by].Copy(t.Context(), request); connect.CodeOf(err) != one.code {
			t.Errorf("%s: %v", what, err)
		}
	}
	awaitReport(t, controller, "the entries", func(r *ballastv1.ReplicaReport) bool { return r.Entries == 2 })
}

func TestALoadBalancerThatDoesNotAnswerIsMissedWithinASecond(t *testing.T) {
	t.Parallel()
	h := newReplicaHost(t)
	controller, _ := h.control(1)
	state := replicatedView(1)
	controller.Topics.SetState(state)
	h.start()
	report := awaitReport(t, controller, "its entries", func(r *ballastv1.ReplicaReport) bool { return r.Incarnation != 0 && r.Address != "" })
	controller.Topics.SetReplicas(ringView(5, report.Incarnation), nil)
	awaitReport(t, controller, "that nobody answers", func(r *ballastv1.ReplicaReport) bool { return slices.Equal(r.Silent, []uint32{7}) })

	k0, k1 := plan.PeerKey(state.Keys.Cookie[1])
	key := peermessage.Key{K0: k0, K1: k1, Epoch: 1}
	var socket *net.UDPConn
	require(t, h.peer.Do(func() (err error) {
		socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.9.0.2:6080")))
		return err
	}))
	defer socket.Close()
	var how atomic.Pointer[func(peermessage.Message) (peermessage.Message, peermessage.Key, uint16)]
	answer := func(as func(peermessage.Message) (peermessage.Message, peermessage.Key, uint16)) { how.Store(&as) }
	pong := func(m peermessage.Message) peermessage.Message {
		m.Kind, m.Last = peermessage.Pong, 7
		return m
	}
	answer(func(m peermessage.Message) (peermessage.Message, peermessage.Key, uint16) {
		return pong(m), key, m.Forwarder
	})
	go func() {
		text := make([]byte, 256)
		for {
			n, from, err := socket.ReadFromUDPAddrPort(text)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			known := func(uint32) (peermessage.Key, bool) { return key, true }
			if m, ok := peermessage.Parse(text[:n]); ok && m.Kind == peermessage.Ping && peermessage.IsGenuine(text[:n], known, 0, 7) {
				if m, with, to := (*how.Load())(m); m.Kind != 0 {
					socket.WriteToUDPAddrPort(m.Append(nil, with, 0, to, false), from)
				}
			}
		}
	}()
	heard := func(r *ballastv1.ReplicaReport) bool { return slices.Equal(r.Heard, []uint32{7}) && len(r.Silent) == 0 }
	awaitReport(t, controller, "that it is heard", heard)
	for what, as := range map[string]func(peermessage.Message) (peermessage.Message, peermessage.Key, uint16){
		"nothing": func(peermessage.Message) (m peermessage.Message, k peermessage.Key, to uint16) { return },
		"a forged answer": func(m peermessage.Message) (peermessage.Message, peermessage.Key, uint16) {
			return pong(m), peermessage.Key{K0: k0 + 1, K1: k1, Epoch: 1}, m.Forwarder
		},
		"one for somebody else": func(m peermessage.Message) (peermessage.Message, peermessage.Key, uint16) { return pong(m), key, 9 },
		"an old one": func(m peermessage.Message) (peermessage.Message, peermessage.Key, uint16) {
			m.Chain = 1
			return pong(m), key, m.Forwarder
		},
		"one of the future": func(m peermessage.Message) (peermessage.Message, peermessage.Key, uint16) {
			m.Chain += 1000
			return pong(m), key, m.Forwarder
		},
		"another's": func(m peermessage.Message) (peermessage.Message, peermessage.Key, uint16) {
			m = pong(m)
			m.Last = 3
			return m, key, m.Forwarder
		},
	} {
		began := time.Now()
		answer(as)
		awaitReport(t, controller, "that it is missed when it answers "+what, func(r *ballastv1.ReplicaReport) bool { return slices.Equal(r.Silent, []uint32{7}) })
		t.Logf("%s: missed after %v", what, time.Since(began).Round(time.Millisecond))
		answer(func(m peermessage.Message) (peermessage.Message, peermessage.Key, uint16) {
			return pong(m), key, m.Forwarder
		})
		awaitReport(t, controller, "that it is heard again", heard)
	}
	status := h.await("no problem but", func(s api.LBStatus) bool { return s.Ready })
	for _, problem := range status.Problems {
		if strings.Contains(problem, "does not answer") {
			t.Error(problem)
		}
	}
}
