package joining

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/enrol"
	"github.com/ballast-lb/ballast/internal/pki"
)

// membersKey is that of the list of nodes that were invited, in the Secret of their tokens.
const membersKey = "nodes.json"

// Implementation constants.
const (
	tokenValid = time.Hour
	tokenSpare = 5 * time.Minute // before its end a token is replaced
	joinTime   = 2 * time.Minute // that a pod gets to join by a token before it counts as one that cannot
)

// roles are those of a node.
var roles = []pki.Role{pki.LB, pki.Agent}

func nameOf(node string, role pki.Role) string {
	if role == pki.LB {
		return balancer(node)
	}
	return node
}

// member is a node that was invited.
type member struct {
	UID     types.UID `json:"uid"` // of its Node: another one of the same name is another machine
	Invited time.Time `json:"invited"`
}

// roster is the Secret with the tokens of nodes that are to join.
type roster struct {
	secret  *corev1.Secret
	missing bool
	members map[string]member
}

func (e *Enrol) roster(ctx context.Context) (*roster, error) {
	name := e.Release + joinSecret
	r := &roster{members: map[string]member{}}
	var err error
	if r.secret, err = e.secrets().Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		r.missing, r.secret, err = true, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
	}
	if err != nil {
		return nil, err
	}
	r.secret = r.secret.DeepCopy()
	if r.secret.Data == nil {
		r.secret.Data = map[string][]byte{}
	}
	if text := r.secret.Data[membersKey]; len(text) > 0 {
		if err := json.Unmarshal(text, &r.members); err != nil {
			return nil, fmt.Errorf("read %s of the Secret %s: %w: delete the Secret, and nodes are invited again", membersKey, name, err)
		}
	}
	return r, nil
}

// write stores a roster that has changed.
func (e *Enrol) write(ctx context.Context, r *roster, before map[string][]byte) (err error) {
	if r.secret.Data[membersKey], err = json.Marshal(r.members); err != nil {
		return err
	}
	if !r.missing && maps.EqualFunc(before, r.secret.Data, bytes.Equal) {
		return nil
	}
	return e.put(ctx, r.secret, r.missing)
}

// drop takes the tokens of a node away.
func (r *roster) drop(node string) {
	for _, role := range roles {
		delete(r.secret.Data, tokenKey(node, role))
	}
}

// open reports whether a node has tokens that can be used for a while.
func (r *roster) open(node string, at time.Time) bool {
	for _, role := range roles {
		token, err := enrol.ParseToken(string(r.secret.Data[tokenKey(node, role)]))
		if err != nil || !at.Before(token.Ends.Add(-tokenSpare)) {
			return false
		}
	}
	return true
}

// members invites nodes whose pods wait for that, and dismisses those that are gone. What could be done is kept if the rest fails.
func (e *Enrol) members(ctx context.Context, authority *corev1.Secret, fleet *ballastv1.GetFleetResponse) error {
	r, err := e.roster(ctx)
	if err != nil {
		return err
	}
	before := maps.Clone(r.secret.Data)
	var failed []error
	for _, name := range slices.Sorted(maps.Keys(r.members)) {
		if e.gone(name, r.members[name]) {
			failed = append(failed, e.dismiss(ctx, r, name))
		}
	}
	pods, err := e.pods.List(e.Selector)
	failed = append(failed, err)
	for _, pod := range pods {
		node, err := e.nodes.Get(pod.Spec.NodeName)
		if err != nil || pod.DeletionTimestamp != nil { // not scheduled yet, or its node is gone
			continue
		}
		failed = append(failed, e.announce(ctx, fleet, node.Name), e.admit(ctx, r, authority, node, pod))
	}
	return errors.Join(append(failed, e.write(ctx, r, before))...)
}

// gone reports whether the machine of a node is not part of the cluster any more. A cluster without nodes is one that is not known.
func (e *Enrol) gone(name string, m member) bool {
	node, err := e.nodes.Get(name)
	return apierrors.IsNotFound(err) || err == nil && node.UID != m.UID
}

// admit has tokens for a node while its pod needs them. A certificate that it has already is kept by `ballast join --keep`.
func (e *Enrol) admit(ctx context.Context, r *roster, authority *corev1.Secret, node *corev1.Node, pod *corev1.Pod) error {
	m, known := r.members[node.Name]
	now := e.Now()
	switch {
	case initialized(pod):
		r.drop(node.Name)
		return nil
	case !known:
	case !failing(pod): // it has not tried yet, or has a certificate
		return nil
	case r.open(node.Name, now) && now.Sub(m.Invited) < joinTime:
		return nil
	default: // the certificates that were signed are not there: the disk is another one
		if err := e.dismiss(ctx, r, node.Name); err != nil {
			return err
		}
	}
	return e.invite(ctx, r, authority, node)
}

// invite makes tokens that are good once, for the names and addresses of a node alone.
func (e *Enrol) invite(ctx context.Context, r *roster, authority *corev1.Secret, node *corev1.Node) error {
	var addresses []string
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			addresses = append(addresses, address.Address)
		}
	}
	if len(addresses) == 0 {
		return fmt.Errorf("node %s has no InternalIP in status.addresses yet", node.Name)
	}
	for _, role := range roles {
		request := &ballastv1.InviteRequest{Role: string(role), Uses: 1, Valid: durationpb.New(tokenValid), Name: nameOf(node.Name, role), Addresses: addresses}
		answer, err := e.Enrolment.Invite(ctx, request)
		if connect.CodeOf(err) == connect.CodeFailedPrecondition {
			if err := e.delegate(ctx, authority); err != nil {
				return err
			}
			answer, err = e.Enrolment.Invite(ctx, request)
		}
		if err != nil {
			return fmt.Errorf("invite node %s: %w", node.Name, err)
		}
		r.secret.Data[tokenKey(node.Name, role)] = []byte(answer.Token)
	}
	r.members[node.Name] = member{node.UID, e.Now().UTC()}
	e.Log.Info("invited", "node", node.Name)
	return nil
}

// dismiss ends the certificates of a node, and has controllers forget it.
func (e *Enrol) dismiss(ctx context.Context, r *roster, node string) error {
	for _, role := range roles {
		_, err := e.Fleet.RevokeCertificate(ctx, &ballastv1.RevokeCertificateRequest{Name: nameOf(node, role), Role: string(role), Reason: "its machine is not part of the cluster any more", Force: true})
		if err := unlessNotFound(err); err != nil {
			return fmt.Errorf("revoke the certificate of node %s: %w", node, err)
		}
		_, err = e.Fleet.ForgetNode(ctx, &ballastv1.NodeRequest{Node: nameOf(node, role), Role: string(role)})
		if err := unlessNotFound(err); err != nil {
			return fmt.Errorf("forget node %s: %w", node, err)
		}
	}
	if err := e.withdraw(ctx, node); err != nil {
		return err
	}
	r.drop(node)
	delete(r.members, node)
	e.Log.Info("dismissed", "node", node)
	return nil
}

// initialized reports whether the init containers of a pod are done: it has joined.
func initialized(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodInitialized && c.Status == corev1.ConditionTrue
	})
}

// failing reports whether an init container of a pod has failed.
func failing(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.InitContainerStatuses, func(s corev1.ContainerStatus) bool {
		failed := func(t *corev1.ContainerStateTerminated) bool { return t != nil && t.ExitCode != 0 }
		return failed(s.LastTerminationState.Terminated) || failed(s.State.Terminated)
	})
}
