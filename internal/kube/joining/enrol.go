package joining

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/kube/lease"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

type secretInterface = typedcorev1.SecretInterface

// Implementation constants.
const (
	pause       = 5 * time.Second // between passes, where nothing changes
	passTimeout = time.Minute
)

// Enrol has the pods of nodes join the fleet.
type Enrol struct {
	*Controller
	Fleet     ballastv1connect.FleetClient // of this controller, by its socket
	Enrolment ballastv1connect.EnrolmentClient
	Selector  labels.Selector // of the nodes' pods
	Node      *model.Node     // how each load balancer announces VIPs, whatever its name; nil: by nothing that controllers know
	Source    string          // name of the certificate of ballast-kube, the owner of its services
	Log       *slog.Logger
	Now       func() time.Time // nil: time.Now

	nodes   corelisters.NodeLister
	pods    corelisters.PodNamespaceLister
	changed chan struct{}
}

// Run works until ctx ends. Of several replicas one invites; each renews the certificate of its own controller.
func (e *Enrol) Run(ctx context.Context) error {
	if e.Now == nil {
		e.Now = time.Now
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go e.repeat(ctx, func(ctx context.Context) error { return e.renew(ctx, e.Now()) }, time.Hour, nil)
	if err := e.watch(ctx); err != nil {
		return err
	}
	return lease.New(e.Kubernetes, e.Namespace, e.Release+"-enrol", e.Name, e.Log).Lead(ctx, func(ctx context.Context) { e.repeat(ctx, e.pass, pause, e.changed) })
}

// watch knows nodes and pods from then on.
func (e *Enrol) watch(ctx context.Context) error {
	e.changed = make(chan struct{}, 1)
	note := func() {
		select {
		case e.changed <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { note() }, UpdateFunc: func(any, any) { note() }, DeleteFunc: func(any) { note() }}
	nodes := informers.NewSharedInformerFactory(e.Kubernetes, 0)
	pods := informers.NewSharedInformerFactoryWithOptions(e.Kubernetes, 0, informers.WithNamespace(e.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = e.Selector.String() }))
	e.nodes, e.pods = nodes.Core().V1().Nodes().Lister(), pods.Core().V1().Pods().Lister().Pods(e.Namespace)
	var synced []cache.InformerSynced
	for _, informer := range []cache.SharedIndexInformer{nodes.Core().V1().Nodes().Informer(), pods.Core().V1().Pods().Informer()} {
		registered, err := informer.AddEventHandler(handler)
		if err != nil {
			return err
		}
		synced = append(synced, registered.HasSynced)
	}
	nodes.StartWithContext(ctx)
	pods.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return ctx.Err()
	}
	return nil
}

// repeat does something at once, after each change, and from time to time. It says an error once.
func (e *Enrol) repeat(ctx context.Context, do func(context.Context) error, every time.Duration, changed <-chan struct{}) {
	said := ""
	for ctx.Err() == nil {
		asked, cancel := context.WithTimeout(ctx, passTimeout)
		err := do(asked)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			said = ""
		case err.Error() != said:
			said = err.Error()
			e.Log.Warn("not everything can be done: it is tried again", "error", err)
		}
		wait := every
		if err != nil {
			wait = min(every, pause)
		}
		select {
		case <-changed:
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// pass brings the fleet and the Secrets in step with the cluster once.
func (e *Enrol) pass(ctx context.Context) error {
	secret, err := e.authority(ctx)
	if err != nil {
		return err
	}
	fleet, err := e.Fleet.GetFleet(ctx, &ballastv1.GetFleetRequest{})
	if err != nil {
		return fmt.Errorf("the controller does not answer: %w", err)
	}
	if err := e.begun(ctx, secret); err != nil {
		return err
	}
	return errors.Join(e.source(ctx, secret), e.members(ctx, secret, fleet))
}

// begun notes that there is a fleet.
func (e *Enrol) begun(ctx context.Context, secret *corev1.Secret) error {
	if secret.Annotations[begunAnnotation] != "" {
		return nil
	}
	next := secret.DeepCopy()
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, begunAnnotation, e.Now().UTC().Format(time.RFC3339))
	_, err := e.secrets().Update(ctx, next, metav1.UpdateOptions{})
	return err
}

// source keeps the certificate of ballast-kube.
func (e *Enrol) source(ctx context.Context, authority *corev1.Secret) error {
	name := e.Release + sourceSecret
	secret, err := e.secrets().Get(ctx, name, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	switch {
	case missing:
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}
	case err != nil:
		return err
	default:
		certificate, err := certificateIn(secret.Data[e.Source+".crt"])
		if err == nil && e.Now().Before(pki.RenewAt(certificate)) && string(secret.Data[rootFile]) == string(authority.Data[rootFile]) {
			return nil
		}
	}
	err = e.withAuthority(authority, func(dir string) error {
		if err := pki.Issue(dir, pki.Request{Role: pki.Source, Name: e.Source}); err != nil {
			return err
		}
		secret.Data, err = read(dir, rootFile, e.Source+".crt", e.Source+".key")
		return err
	})
	if err != nil {
		return err
	}
	return e.put(ctx, secret, missing)
}

// put writes a Secret that is missing, or has changed.
func (c *Controller) put(ctx context.Context, secret *corev1.Secret, missing bool) (err error) {
	if missing {
		_, err = c.secrets().Create(ctx, secret, metav1.CreateOptions{})
	} else {
		_, err = c.secrets().Update(ctx, secret, metav1.UpdateOptions{})
	}
	return err
}

func certificateIn(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("there is no certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

// delegate gives the controllers an authority that signs for nodes.
func (e *Enrol) delegate(ctx context.Context, authority *corev1.Secret) error {
	return e.withAuthority(authority, func(dir string) error {
		signing, err := pki.Delegate(dir, 0)
		if err != nil {
			return err
		}
		request := &ballastv1.SetSigningAuthorityRequest{}
		if request.Certificate, request.Key, err = signing.Encode(); err != nil {
			return err
		}
		_, err = e.Enrolment.SetSigningAuthority(ctx, request)
		return err
	})
}

// announce has the fleet know how the load balancer of a node announces VIPs.
func (e *Enrol) announce(ctx context.Context, fleet *ballastv1.GetFleetResponse, node string) error {
	if e.Node == nil {
		return nil
	}
	wanted := *e.Node
	wanted.Name = balancer(node)
	message := api.NodeToProto(&wanted)
	i := slices.IndexFunc(fleet.Nodes, func(n *ballastv1.Node) bool { return n.Name == wanted.Name })
	if i >= 0 {
		there := proto.CloneOf(fleet.Nodes[i])
		there.State = message.State // by `ballast ctl node drain`
		if proto.Equal(there, message) {
			return nil
		}
		message.State = fleet.Nodes[i].State
		if err := e.withdraw(ctx, node); err != nil {
			return err
		}
	}
	_, err := e.Fleet.AddNode(ctx, &ballastv1.AddNodeRequest{Node: message})
	return err
}

// withdraw takes the load balancer of a node out of the configuration; one that is not there is no error.
func (e *Enrol) withdraw(ctx context.Context, node string) error {
	_, err := e.Fleet.RemoveNode(ctx, &ballastv1.NodeRequest{Node: balancer(node), Force: true})
	return unlessNotFound(err)
}

func unlessNotFound(err error) error {
	if connect.CodeOf(err) == connect.CodeNotFound {
		return nil
	}
	return err
}

// balancer is the name of a node's load balancer: its agent has the node's, and no node's has a colon.
func balancer(node string) string { return node + ":lb" }

// tokenKey is that of a node's token in the Secret, which names the file that the node's pod reads.
func tokenKey(node string, role pki.Role) string {
	return strings.Join([]string{node, string(role)}, ".")
}
