package joining

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/enrol"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// fleet is a controller that notes what it is asked.
type fleet struct {
	ballastv1connect.FleetClient
	ballastv1connect.EnrolmentClient
	asked   []string
	nodes   []*ballastv1.Node
	signing bool // it has an authority that signs
	now     func() time.Time
	invited []*ballastv1.InviteRequest
}

func (f *fleet) GetFleet(context.Context, *ballastv1.GetFleetRequest) (*ballastv1.GetFleetResponse, error) {
	return &ballastv1.GetFleetResponse{Nodes: f.nodes}, nil
}

func (f *fleet) AddNode(_ context.Context, r *ballastv1.AddNodeRequest) (*ballastv1.ChangeResponse, error) {
	f.asked = append(f.asked, "add "+r.Node.Name)
	f.nodes = append(f.nodes, r.Node)
	return &ballastv1.ChangeResponse{}, nil
}

func (f *fleet) RemoveNode(_ context.Context, r *ballastv1.NodeRequest) (*ballastv1.ChangeResponse, error) {
	before := len(f.nodes)
	if f.nodes = slices.DeleteFunc(f.nodes, func(n *ballastv1.Node) bool { return n.Name == r.Node }); len(f.nodes) == before {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("there is none"))
	}
	f.asked = append(f.asked, "remove "+r.Node)
	return &ballastv1.ChangeResponse{}, nil
}

func (f *fleet) RevokeCertificate(_ context.Context, r *ballastv1.RevokeCertificateRequest) (*ballastv1.ChangeResponse, error) {
	f.asked = append(f.asked, "revoke "+r.Role+" "+r.Name)
	return &ballastv1.ChangeResponse{}, nil
}

func (f *fleet) ForgetNode(context.Context, *ballastv1.NodeRequest) (*ballastv1.ChangeResponse, error) {
	return nil, connect.NewError(connect.CodeNotFound, errors.New("it is not known"))
}

func (f *fleet) SetSigningAuthority(context.Context, *ballastv1.SetSigningAuthorityRequest) (*ballastv1.ChangeResponse, error) {
	f.signing = true
	return &ballastv1.ChangeResponse{}, nil
}

func (f *fleet) Invite(_ context.Context, r *ballastv1.InviteRequest) (*ballastv1.InviteResponse, error) {
	if !f.signing {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("nobody signs"))
	}
	f.invited = append(f.invited, r)
	return &ballastv1.InviteResponse{Token: enrol.NewToken(pki.Role(r.Role), [32]byte{1}, f.now().Add(r.Valid.AsDuration())).String()}, nil
}

// world is an Enrol with a cluster and a controller.
type world struct {
	*testing.T
	*Enrol
	fleet  *fleet
	client *fake.Clientset
	clock  time.Time
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	w := &world{T: t, client: fake.NewClientset(objects...), clock: time.Now()}
	now := func() time.Time { return w.clock }
	w.fleet = &fleet{now: now}
	c := &Controller{Kubernetes: w.client, Namespace: "ballast", Release: "b", Name: "b-controller-0", TLSDir: t.TempDir(), First: "b-controller-0", DataDir: t.TempDir()}
	fleettest.Require(t, c.Certify(t.Context()))
	each := &model.Node{Name: "each", L2: model.L2{Interface: "eth0"}}
	w.Enrol = &Enrol{Controller: c, Fleet: w.fleet, Enrolment: w.fleet, Selector: labels.SelectorFromSet(labels.Set{"a": "node"}), Node: each, Source: "kube", Log: slog.New(slog.DiscardHandler), Now: now}
	fleettest.Require(t, w.watch(t.Context()))
	return w
}

// once is a pass over what the cluster has now.
func (w *world) once() {
	w.Helper()
	fleettest.Require(w.T, w.pass(w.Context()))
}

func (w *world) secret(name string) map[string][]byte {
	w.Helper()
	secret, err := w.client.CoreV1().Secrets("ballast").Get(w.Context(), name, metav1.GetOptions{})
	fleettest.Require(w.T, err)
	return secret.Data
}

// tokens are the keys of tokens that there are.
func (w *world) tokens() string {
	w.Helper()
	var keys []string
	for key := range w.secret("b-join") {
		if key != membersKey {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

func node(name string, uid types.UID) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"}}}}
}

func pod(name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ballast", Labels: map[string]string{"a": "node"}}, Spec: corev1.PodSpec{NodeName: node}}
}

// setPod changes the status of a pod, and waits until that is known.
func (w *world) setPod(name string, change func(*corev1.PodStatus)) {
	w.Helper()
	p, err := w.client.CoreV1().Pods("ballast").Get(w.Context(), name, metav1.GetOptions{})
	fleettest.Require(w.T, err)
	change(&p.Status)
	p.ResourceVersion += "1"
	_, err = w.client.CoreV1().Pods("ballast").UpdateStatus(w.Context(), p, metav1.UpdateOptions{})
	fleettest.Require(w.T, err)
	fleettest.Await(w.T, "the pod is as it was set", func() bool {
		known, err := w.pods.Get(name)
		return err == nil && known.ResourceVersion == p.ResourceVersion
	})
}

func joined(s *corev1.PodStatus) {
	s.Conditions = []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}}
}

func failed(s *corev1.PodStatus) {
	s.InitContainerStatuses = []corev1.ContainerStatus{{LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}}
}

// Promise: A node's tokens are for its names and addresses alone, good once, and gone when its pod has joined.
func TestAPodGetsTokensOfItsNodeAlone(t *testing.T) {
	w := newWorld(t, node("n1", "1"), node("n2", "2"), pod("p1", "n1"), pod("pending", ""))
	w.once()
	if got := w.tokens(); got != "n1.agent n1.lb" {
		t.Errorf("tokens: %s", got)
	}
	for i, name := range []string{"n1:lb", "n1"} {
		if r := w.fleet.invited[i]; r.Name != name || r.Uses != 1 || r.Valid.AsDuration() != time.Hour || strings.Join(r.Addresses, " ") != "10.0.0.1 fd00::1" {
			t.Errorf("invited: %v", r)
		}
	}
	if w.once(); len(w.fleet.invited) != 2 {
		t.Errorf("%d invitations", len(w.fleet.invited))
	}
	w.setPod("p1", joined)
	if w.once(); w.tokens() != "" {
		t.Errorf("tokens of a node that has joined: %s", w.tokens())
	}
	if got := strings.Join(w.fleet.asked, ", "); got != "add n1:lb" {
		t.Errorf("asked: %s", got)
	}
}

// Promise: A pod that cannot join gets other tokens, and certificates that its node had are revoked: not while it may be trying.
func TestANodeThatLostItsDiskJoinsAgain(t *testing.T) {
	w := newWorld(t, node("n1", "1"), pod("p1", "n1"))
	w.once()
	w.setPod("p1", failed)
	if w.once(); len(w.fleet.invited) != 2 {
		t.Error("it was invited again at once")
	}
	w.clock = w.clock.Add(joinTime)
	w.once()
	if got := strings.Join(w.fleet.asked, ", "); len(w.fleet.invited) != 4 || !strings.Contains(got, "revoke lb n1:lb, revoke agent n1") {
		t.Errorf("%d invitations, asked: %s", len(w.fleet.invited), got)
	}
}

// Promise: A Node that is deleted, or another one by its name, ends the certificates of the machine.
func TestANodeThatIsGoneIsForgotten(t *testing.T) {
	w := newWorld(t, node("n1", "1"), node("n2", "2"), pod("p1", "n1"), pod("p2", "n2"))
	w.once()
	for _, name := range []string{"p1", "p2"} {
		w.setPod(name, joined)
	}
	w.once()
	w.fleet.asked = nil
	fleettest.Require(t, w.client.CoreV1().Pods("ballast").Delete(t.Context(), "p1", metav1.DeleteOptions{}))
	fleettest.Require(t, w.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}))
	fleettest.Await(t, "the Node is gone", func() bool {
		_, err := w.nodes.Get("n1")
		_, other := w.pods.Get("p1")
		return err != nil && other != nil
	})
	w.once()
	if got := strings.Join(w.fleet.asked, ", "); got != "revoke lb n1:lb, revoke agent n1, remove n1:lb" {
		t.Errorf("asked: %s", got)
	}
}

// Promise: The first controller does not begin another fleet once one has begun; a second one gets its certificate from the same authority.
func TestAControllerWithoutStateBeginsNoOtherFleet(t *testing.T) {
	w := newWorld(t)
	authority := string(w.secret("b-authority")[rootFile])
	w.once()
	if err := w.Certify(t.Context()); err == nil || !strings.Contains(err.Error(), "is empty, and the fleet has begun") {
		t.Errorf("it says %v", err)
	}
	fleettest.Require(t, os.Mkdir(filepath.Join(w.DataDir, "member"), 0o700))
	fleettest.Require(t, w.Certify(t.Context()))
	second := *w.Controller
	second.Name, second.TLSDir, second.DataDir = "b-controller-1", t.TempDir(), t.TempDir()
	fleettest.Require(t, second.Certify(t.Context()))
	root, err := os.ReadFile(filepath.Join(second.TLSDir, rootFile))
	fleettest.Require(t, err)
	if string(root) != authority {
		t.Error("it has another authority")
	}
	entries, err := os.ReadDir(second.TLSDir)
	fleettest.Require(t, err)
	if len(entries) != 3 {
		t.Errorf("%v: the authority's key is beside the certificate", entries)
	}
}

// Promise: The certificate of ballast-kube is there, and is replaced before it ends.
func TestTheCertificateOfBallastKubeIsRenewed(t *testing.T) {
	w := newWorld(t)
	w.once()
	first := w.secret("b-source")
	w.once()
	if second := w.secret("b-source"); string(second["kube.crt"]) != string(first["kube.crt"]) {
		t.Error("it was replaced at once")
	}
	certificate, err := certificateIn(first["kube.crt"])
	fleettest.Require(t, err)
	w.clock = pki.RenewAt(certificate).Add(time.Second)
	w.once()
	if second := w.secret("b-source"); string(second["kube.crt"]) == string(first["kube.crt"]) {
		t.Error("it was not replaced")
	}
}
