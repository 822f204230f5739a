// Package kube runs ballast-kube: informers of a Kubernetes cluster on one side, the fleet API on the other, and internal/machine/kube between them.
// Several replicas may run; one leads.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	gw "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"

	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/kube/lease"
	mapping "github.com/ballast-lb/ballast/internal/machine/kube"
	"github.com/ballast-lb/ballast/internal/pki"
)

// component names us in Events and in the requests of the API server's log.
const component = "ballast-kube"

// Options are what Run needs.
type Options struct {
	Mapping     mapping.Options
	Kubernetes  kubernetes.Interface
	Gateways    versioned.Interface // of the same API server
	Fleet       ballastv1connect.FleetClient
	Credentials *pki.Credentials // for metrics of their end; nil: none
	Identity    string           // of this replica, other than that of the others
	Namespace   string           // of the lease
	Lease       string           // its name
	Resync      time.Duration    // between passes without a change
	Listener    net.Listener     // for Prometheus and probes; nil: nowhere
	Version     string
	Log         *slog.Logger
}

// Run keeps the fleet in step with the cluster until ctx ends. Errors of either are no errors of Run: it goes on trying.
func Run(ctx context.Context, o Options) error {
	watched, err := newCluster(o.Kubernetes, o.Gateways, o.Log)
	if err != nil {
		return err
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: o.Kubernetes.CoreV1().Events("")})
	kinds := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(kinds), gw.Install(kinds)); err != nil {
		return err
	}
	r := &replica{Options: o, reconciler: &reconciler{options: o.Mapping, resync: o.Resync, cluster: watched, log: o.Log,
		fleet:   &fleet{client: o.Fleet, owner: o.Mapping.Owner},
		objects: &objects{client: o.Kubernetes, gateways: o.Gateways, recorder: events.NewRecorder(kinds, corev1.EventSource{Component: component})}}}
	r.fleet.progress = r.progress
	r.lease = lease.New(o.Kubernetes, o.Namespace, o.Lease, o.Identity, o.Log)
	watched.factory.StartWithContext(ctx)
	defer watched.factory.Shutdown()
	group, ctx := errgroup.WithContext(ctx)
	if o.Listener != nil {
		group.Go(func() error { return listen.Serve(ctx, o.Log, o.Listener, r.routes()) })
	}
	group.Go(func() error { return r.lease.Lead(ctx, r.work) })
	group.Go(func() error { r.probe(ctx); return nil })
	group.Go(func() error { watched.gateways.look(ctx, o.Resync, watched.notify); return nil })
	return group.Wait()
}

// replica is one process.
type replica struct {
	Options
	*reconciler
	lease *lease.Lease
}

// probe asks controllers for the fleet from time to time while another replica leads: one that cannot reach them is not ready to lead.
func (r *replica) probe(ctx context.Context) {
	for {
		if !r.now().leads {
			if _, err := r.read(ctx); err != nil && ctx.Err() == nil {
				r.log.Warn("controllers do not answer", "error", err)
			}
		}
		if !pause(ctx, r.resync) {
			return
		}
	}
}

// unready are why this replica could not lead now: what it knows may be old, or nobody takes what it decides.
func (r *replica) unready() (problems []string) {
	problems = r.cluster.problems()
	if why := r.lease.Problem(); why != nil {
		problems = append(problems, fmt.Sprintf("the API server does not keep the lease %s/%s: %v", r.Namespace, r.Lease, why))
	}
	switch now := r.now(); {
	case now.unreached != nil:
		problems = append(problems, now.unreached.Error())
	case now.reached.IsZero():
		problems = append(problems, "no controller was asked for the fleet yet")
	case time.Since(now.reached) > 2*r.resync+fleetTimeout+stuckAfter:
		problems = append(problems, "no controller has answered since "+now.reached.Format(time.RFC3339))
	}
	return problems
}

// dead are why this process should be started again.
func (r *replica) dead() []string {
	if begun := r.now().progress; !begun.IsZero() && time.Since(begun) > stuckAfter {
		return []string{"a pass has made no progress since " + begun.Format(time.RFC3339)}
	}
	return nil
}

func (r *replica) routes() http.Handler {
	mux := http.NewServeMux()
	probe := func(pattern string, problems func() []string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { serveProbe(w, problems()) })
	}
	probe("GET /healthz", r.dead)
	probe("GET /readyz", r.unready)
	mux.Handle("GET /metrics", r.metrics())
	return mux
}

func serveProbe(w http.ResponseWriter, problems []string) {
	if len(problems) > 0 {
		http.Error(w, strings.Join(problems, "\n"), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}
