package controller

import (
	"bytes"
	"encoding/binary"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

// post sends a message to a controller's store as etcd does.
func post(t *testing.T, k *keeper, credentials *pki.Credentials, path string, m *raftpb.Message) (status int, answer string) {
	t.Helper()
	text, err := proto.Marshal(m)
	fleettest.Require(t, err)
	if path == "/raft/snapshot" {
		text = append(binary.BigEndian.AppendUint64(nil, uint64(len(text))), text...)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+k.address+path, bytes.NewReader(text))
	fleettest.Require(t, err)
	request.Header.Set("X-Etcd-Cluster-ID", clusterOf(t, k, credentials))
	request.Header.Set("X-Server-Version", "3.7.0")
	request.Header.Set("X-Min-Cluster-Version", "3.0.0")
	return answerTo(t, credentials, request)
}

func clusterOf(t *testing.T, k *keeper, credentials *pki.Credentials) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{TLSClientConfig: credentials.Client(), DisableKeepAlives: true}}
	response, err := client.Get("https://" + k.address + "/members")
	fleettest.Require(t, err)
	response.Body.Close()
	return response.Header.Get("X-Etcd-Cluster-ID")
}

// A controller that was broken into and not revoked yet votes and answers once, in its own name.
//
// Promise: A controller cannot post store messages in another one's name: they are refused, counted, and a problem
// in status.
func TestNoControllerSendsTheStoreAMessageInAnotherOnesName(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	operator := ca.Issue(pki.Ctl, "me")
	at := []string{freeAddress(t), freeAddress(t), freeAddress(t)}
	c1 := startKeeper(t, ca, "c1", t.TempDir(), at[0])
	startKeeper(t, ca, "c2", t.TempDir(), at[1], at[0])
	startKeeper(t, ca, "c3", t.TempDir(), at[2], at[0])
	awaitControllers(t, controllersOf(operator, at[0]), "c1 voter alive", "c2 voter alive", "c3 voter alive")
	thief, err := pki.Load(ca.Dir, "c2", pki.Controller)
	fleettest.Require(t, err)
	id := func(name string) *uint64 {
		number, err := strconv.ParseUint(member(t, c1, thief, name), 16, 64)
		fleettest.Require(t, err)
		return &number
	}
	message := func(kind raftpb.MessageType, from string) *raftpb.Message {
		return &raftpb.Message{Type: kind.Enum(), To: id("c1"), From: id(from)}
	}
	fleet := api.NewFleetClient(at[:1], operator.Client())
	apply(t, fleet, fleettest.Service("web", 1))
	changes := startChanger(t, fleet)
	for _, c := range []struct {
		path    string
		message *raftpb.Message
		status  int
	}{
		{"/raft", message(raftpb.MsgHeartbeatResp, "c2"), http.StatusNoContent}, // which shows that it is one that counts
		{"/raft", message(raftpb.MsgHeartbeatResp, "c3"), http.StatusUnauthorized},
		{"/raft", message(raftpb.MsgAppResp, "c3"), http.StatusUnauthorized},
		{"/raft", message(raftpb.MsgVote, "c1"), http.StatusUnauthorized},
		{"/raft/snapshot", message(raftpb.MsgSnap, "c3"), http.StatusUnauthorized},
		{"/raft", message(raftpb.MsgReadIndex, "c3"), http.StatusNoContent}, // c2 may pass it on
	} {
		if status, answer := post(t, c1, thief, c.path, c.message); status != c.status || status == http.StatusUnauthorized && !strings.Contains(answer, "the certificate is that of c2") {
			t.Errorf("%s of %v from %x: %d %s, want %d", c.path, c.message.GetType(), c.message.GetFrom(), status, answer, c.status)
		}
	}
	changes.goesOn("after messages in another's name")
	nodes, err := fleet.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
	fleettest.Require(t, err)
	found := strings.Join(nodes.Nodes[0].Problems, "; ") // of the one that is asked, and the first by name
	if !strings.Contains(found, "whoever has the certificate of controller c2 uses the store as controller c3, and is refused (4 times)") {
		t.Errorf("its problems: %s", found)
	}
}
