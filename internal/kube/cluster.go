package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"

	mapping "github.com/ballast-lb/ballast/internal/machine/kube"
)

// watchPatience is how long after a failure a watch counts as failing, unless something has come since: client-go tries again within that time.
const watchPatience = 90 * time.Second

// cluster is what the API server has, as informers know it.
type cluster struct {
	factory  informers.SharedInformerFactory
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
	nodes    corelisters.NodeLister
	gateways *gatewayAPI
	changed  chan struct{} // something may have

	mutex     sync.Mutex
	informers map[string]cache.SharedIndexInformer // by what they watch
	failures  map[string]failure
}

// failure is why a watch ended, and what was known then.
type failure struct {
	at      time.Time
	why     error
	version string
}

func newCluster(client kubernetes.Interface, gateways versioned.Interface, log *slog.Logger) (*cluster, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(strip))
	services, endpoints, nodes := factory.Core().V1().Services(), factory.Discovery().V1().EndpointSlices(), factory.Core().V1().Nodes()
	c := &cluster{factory: factory, services: services.Lister(), slices: endpoints.Lister(), nodes: nodes.Lister(), changed: make(chan struct{}, 1), failures: map[string]failure{},
		informers: map[string]cache.SharedIndexInformer{}}
	c.gateways = &gatewayAPI{core: client, client: gateways, watch: c.watch, forget: c.forget, log: log}
	return c, errors.Join(c.watch("services", services.Informer()), c.watch("endpointslices", endpoints.Informer()), c.watch("nodes", nodes.Informer()))
}

// watch has an informer, which is not started yet, tell of changes and failures.
func (c *cluster) watch(what string, informer cache.SharedIndexInformer) error {
	c.mutex.Lock()
	c.informers[what] = informer
	c.mutex.Unlock()
	handler := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { c.notify() }, DeleteFunc: func(any) { c.notify() }, UpdateFunc: func(before, after any) {
		if matters(before, after) {
			c.notify()
		}
	}}
	if _, err := informer.AddEventHandler(handler); err != nil {
		return err
	}
	return informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		c.fail(what, err)
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
}

// forget ends watch.
func (c *cluster) forget(what ...string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, one := range what {
		delete(c.informers, one)
		delete(c.failures, one)
	}
}

// strip takes off objects what is not read, before a cache keeps them.
func strip(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	if node, ok := object.(*corev1.Node); ok {
		node.Status.Images, node.Status.Conditions = nil, nil
	}
	return object, nil
}

// matters reports whether an update is one to us: nodes report every few seconds that they live.
func matters(before, after any) bool {
	old, ok := before.(*corev1.Node)
	node, also := after.(*corev1.Node)
	return !ok || !also || !reflect.DeepEqual(old.Status.Addresses, node.Status.Addresses) || !maps.Equal(old.Labels, node.Labels)
}

func (c *cluster) notify() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// fail notes that a watch or a list has failed. Those that end as they should say so.
func (c *cluster) fail(what string, err error) {
	if err == io.EOF || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || c.gateways.deny(what, err) {
		return
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if informer := c.informers[what]; informer != nil {
		c.failures[what] = failure{time.Now(), err, informer.LastSyncResourceVersion()}
	}
}

// synced reports whether everything was listed once.
func (c *cluster) synced() bool {
	if !c.gateways.ready() {
		return false
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for what, informer := range c.informers {
		if !informer.HasSynced() && !c.gateways.concerns(what) {
			return false
		}
	}
	return true
}

// problems are why what is known may be old.
func (c *cluster) problems() (list []string) {
	if err := c.gateways.state(); err != nil {
		list = append(list, err.Error())
	}
	settled := c.gateways.ready()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, what := range slices.Sorted(maps.Keys(c.informers)) {
		informer, failed := c.informers[what], c.failures[what]
		if recent := !failed.at.IsZero() && time.Since(failed.at) < watchPatience && informer.LastSyncResourceVersion() == failed.version; recent {
			list = append(list, fmt.Sprintf("the API server does not let %s be watched: %v: is it running, and may this account list and watch them?", what, failed.why))
		} else if !informer.HasSynced() && !(c.gateways.concerns(what) && settled) {
			list = append(list, fmt.Sprintf("the API server has not listed %s yet", what))
		}
	}
	return list
}

// input is the cluster as it is known.
func (c *cluster) input() (in mapping.Input, err error) {
	if in.Services, err = c.services.List(labels.Everything()); err != nil {
		return in, err
	}
	if in.Slices, err = c.slices.List(labels.Everything()); err != nil {
		return in, err
	}
	if in.Nodes, err = c.nodes.List(labels.Everything()); err != nil {
		return in, err
	}
	in.Gateways, err = c.gateways.input()
	return in, err
}
