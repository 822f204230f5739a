package kube

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	gw "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"
	"sigs.k8s.io/gateway-api/pkg/client/informers/externalversions"
	gwlisters "sigs.k8s.io/gateway-api/pkg/client/listers/apis/v1"

	mapping "github.com/ballast-lb/ballast/internal/machine/kube"
)

// needed are the resources of the Gateway API that we watch, all of the version that gw has.
var needed = []string{"gatewayclasses", "gateways", "referencegrants", "tcproutes", "tlsroutes", "udproutes"}

// gatewayAPI is the Gateway API of the API server, which may be installed and removed at any time.
type gatewayAPI struct {
	core   kubernetes.Interface
	client versioned.Interface
	watch  func(what string, informer cache.SharedIndexInformer) error
	forget func(what ...string)
	log    *slog.Logger

	mutex   sync.Mutex
	asked   bool // the API server has said whether it has it
	problem error
	current *gatewayWatch // nil: it has not
	missing string        // said last
	denied  bool          // this account may not watch it: Services do not wait for it
}

// gatewayWatch are informers of the Gateway API while there is one.
type gatewayWatch struct {
	stop       context.CancelFunc
	core       informers.SharedInformerFactory
	factory    externalversions.SharedInformerFactory
	classes    gwlisters.GatewayClassLister
	gateways   gwlisters.GatewayLister
	tcp        gwlisters.TCPRouteLister
	udp        gwlisters.UDPRouteLister
	tls        gwlisters.TLSRouteLister
	grants     gwlisters.ReferenceGrantLister
	namespaces corelisters.NamespaceLister
	synced     []cache.InformerSynced
}

// look asks whether the API server has the Gateway API, from time to time, until ctx ends.
func (g *gatewayAPI) look(ctx context.Context, every time.Duration, changed func()) {
	defer g.end()
	for {
		if g.ask(ctx) {
			changed()
		}
		if !pause(ctx, every) {
			return
		}
	}
}

// ask asks once, and reports whether the answer differs from the last one.
func (g *gatewayAPI) ask(ctx context.Context) (differs bool) {
	missing, err := g.lacking()
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if g.problem = err; err != nil {
		return false // it is as it was
	}
	first := !g.asked
	g.asked = true
	switch {
	case missing == "" && g.current == nil:
		if g.current, g.problem = g.start(ctx); g.problem != nil {
			return false
		}
		g.log.Info("the API server has the Gateway API")
	case missing != "" && (first || g.current != nil || g.missing != missing):
		g.log.Info("Gateways are not served: the API server lacks resources of "+gw.GroupVersion.String()+"; install the Gateway API v1.6 or later for them", "missing", missing)
		if g.current != nil {
			g.current.end()
			g.forget(append(slices.Clone(needed), "namespaces")...)
			g.current = nil
		}
	default:
		return first
	}
	g.missing = missing
	return true
}

// lacking are the resources that the API server has not; empty: it has all.
func (g *gatewayAPI) lacking() (missing string, err error) {
	list, err := g.core.Discovery().ServerResourcesForGroupVersion(gw.GroupVersion.String())
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("the API server does not say whether it has the Gateway API: %w", err)
	}
	has := map[string]bool{}
	if err == nil {
		for _, r := range list.APIResources {
			has[r.Name] = true
		}
	}
	return strings.Join(slices.DeleteFunc(slices.Clone(needed), func(name string) bool { return has[name] }), ", "), nil
}

func (g *gatewayAPI) start(ctx context.Context) (*gatewayWatch, error) {
	w := &gatewayWatch{core: informers.NewSharedInformerFactoryWithOptions(g.core, 0, informers.WithTransform(strip)),
		factory: externalversions.NewSharedInformerFactoryWithOptions(g.client, 0, externalversions.WithTransform(strip))}
	v1, namespaces := w.factory.Gateway().V1(), w.core.Core().V1().Namespaces()
	w.classes, w.gateways, w.grants, w.namespaces = v1.GatewayClasses().Lister(), v1.Gateways().Lister(), v1.ReferenceGrants().Lister(), namespaces.Lister()
	w.tcp, w.udp, w.tls = v1.TCPRoutes().Lister(), v1.UDPRoutes().Lister(), v1.TLSRoutes().Lister()
	for what, informer := range map[string]cache.SharedIndexInformer{"gatewayclasses": v1.GatewayClasses().Informer(), "gateways": v1.Gateways().Informer(),
		"referencegrants": v1.ReferenceGrants().Informer(), "tcproutes": v1.TCPRoutes().Informer(), "udproutes": v1.UDPRoutes().Informer(), "tlsroutes": v1.TLSRoutes().Informer(),
		"namespaces": namespaces.Informer()} {
		if err := g.watch(what, informer); err != nil {
			return nil, err
		}
		w.synced = append(w.synced, informer.HasSynced)
	}
	ctx, w.stop = context.WithCancel(ctx)
	w.core.StartWithContext(ctx)
	w.factory.Start(ctx.Done())
	return w, nil
}

func (w *gatewayWatch) end() {
	w.stop()
	w.core.Shutdown()
	w.factory.Shutdown()
}

func (g *gatewayAPI) end() {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if g.current != nil {
		g.current.end()
	}
}

// state is why nobody knows yet whether there are Gateways; nil: it is known.
func (g *gatewayAPI) state() error {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if g.asked {
		return nil
	}
	return g.problem
}

// concerns reports whether a resource is watched for Gateways alone.
func (g *gatewayAPI) concerns(what string) bool {
	return what == "namespaces" || slices.Contains(needed, what)
}

// deny notes that this account may not watch a resource, and reports whether it is one of the Gateway API.
func (g *gatewayAPI) deny(what string, err error) bool {
	if !g.concerns(what) || !apierrors.IsForbidden(err) {
		return false
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if !g.denied {
		g.denied = true
		g.log.Warn("Gateways are not served: this account may not watch them; give it the role ballast-kube-gateways of deploy/kubernetes/rbac.yaml", "error", err)
	}
	return true
}

// ready reports whether all that there is, and may be watched, was listed.
func (g *gatewayAPI) ready() bool {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	return g.asked && (g.current == nil || g.denied || g.current.listed())
}

// known reports whether Gateways are served.
func (g *gatewayAPI) known() bool {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	return g.current != nil && g.current.listed()
}

func (w *gatewayWatch) listed() bool {
	return !slices.ContainsFunc(w.synced, func(synced cache.InformerSynced) bool { return !synced() })
}

// input are the objects of the Gateway API as they are known.
func (g *gatewayAPI) input() (in mapping.Gateways, err error) {
	g.mutex.Lock()
	w := g.current
	g.mutex.Unlock()
	if w == nil || !w.listed() {
		return in, nil
	}
	all := labels.Everything()
	if in.Classes, err = w.classes.List(all); err != nil {
		return in, err
	}
	if in.Gateways, err = w.gateways.List(all); err != nil {
		return in, err
	}
	if in.TCPRoutes, err = w.tcp.List(all); err != nil {
		return in, err
	}
	if in.UDPRoutes, err = w.udp.List(all); err != nil {
		return in, err
	}
	if in.TLSRoutes, err = w.tls.List(all); err != nil {
		return in, err
	}
	if in.Grants, err = w.grants.List(all); err != nil {
		return in, err
	}
	in.Namespaces, err = w.namespaces.List(all)
	in.Known = err == nil
	return in, err
}
