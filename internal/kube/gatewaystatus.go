package kube

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	mapping "github.com/ballast-lb/ballast/internal/machine/kube"
)

// reconcileDerived makes the Services of listeners as they should be, before the fleet sends anything to them. What the cluster refuses is said at
// its Gateway: a namespace may allow no more Services.
func (r *reconciler) reconcileDerived(ctx context.Context, out *mapping.Output, unsecured map[string]bool) []error {
	list := slices.DeleteFunc(slices.Clone(out.Derived), func(d mapping.Derived) bool { return unsecured[d.Gateway.String()] })
	errs := r.each(ctx, len(list), func(ctx context.Context, i int) error { return r.objects.derive(ctx, &list[i]) })
	why := map[string]string{}
	for i, err := range errs {
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
			why[list[i].Want.Name], errs[i] = "the cluster does not take Service "+list[i].Want.Namespace+"/"+list[i].Want.Name+": "+err.Error(), nil
		}
	}
	for i := range out.Gateways {
		g := &out.Gateways[i]
		for name, listener := range g.Derived {
			if text := why[name]; text != "" {
				g.Unserved(listener, text)
				out.Events = append(out.Events, mapping.Event{Object: g.Gateway, Reason: mapping.ReasonListener, Message: text})
			}
		}
	}
	return failures(errs)
}

// failures are the errors that a repetition may end: of a conflict, the newer object is on its way here.
func failures(errs []error) []error {
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil || apierrors.IsConflict(err) })
}

// reportGateways tells the cluster of Gateways and routes what the fleet has.
func (r *reconciler) reportGateways(ctx context.Context, out *mapping.Output, refused map[string]error) (failed []error) {
	var settled []*mapping.GatewayObject
	for i := range out.Gateways {
		g := &out.Gateways[i]
		taken := true
		for name, listener := range g.Services {
			if why := refused[name]; why != nil {
				taken = false
				g.Unserved(listener, notTaken(name, why))
				out.Events = append(out.Events, mapping.Event{Object: g.Gateway, Reason: reasonRefused, Message: notTaken(name, why)})
			}
		}
		if taken || g.Status != nil {
			settled = append(settled, g)
		}
	}
	failed = append(failed, failures(r.each(ctx, len(settled), func(ctx context.Context, i int) error {
		switch g := settled[i]; {
		case g.Status != nil:
			return r.objects.reportGateway(ctx, g)
		case !g.Finalized && r.options.HasFinalizer(g.Gateway):
			return r.objects.finalize(ctx, g.Gateway, r.options.Finalizer(), false)
		}
		return nil
	}))...)
	failed = append(failed, failures(r.each(ctx, len(out.Routes), func(ctx context.Context, i int) error { return r.objects.reportRoute(ctx, &out.Routes[i]) }))...)
	failed = append(failed, failures(r.each(ctx, len(out.Classes), func(ctx context.Context, i int) error { return r.objects.reportClass(ctx, &out.Classes[i]) }))...)
	return append(failed, failures(r.each(ctx, len(out.Excess), func(ctx context.Context, i int) error { return r.objects.remove(ctx, out.Excess[i]) }))...)
}

// joined are the conditions that an object should have: those of others as they are, and ours with the time of their last change.
func joined(have, want []metav1.Condition) []metav1.Condition {
	list := slices.Clone(have)
	for _, c := range want {
		c.LastTransitionTime = metav1.NewTime(time.Now().Truncate(time.Second))
		i := slices.IndexFunc(list, func(other metav1.Condition) bool { return other.Type == c.Type })
		if i < 0 {
			list = append(list, c)
			continue
		}
		if list[i].Status == c.Status && !list[i].LastTransitionTime.IsZero() {
			c.LastTransitionTime = list[i].LastTransitionTime
		}
		list[i] = c
	}
	return list
}

func (o *objects) reportGateway(ctx context.Context, g *mapping.GatewayObject) error {
	have := &g.Gateway.Status
	status := gw.GatewayStatus{Addresses: g.Status.Addresses, Conditions: joined(have.Conditions, g.Status.Conditions)}
	for _, l := range g.Status.Listeners {
		i := slices.IndexFunc(have.Listeners, func(other gw.ListenerStatus) bool { return other.Name == l.Name })
		var before []metav1.Condition
		if i >= 0 {
			before = have.Listeners[i].Conditions
		}
		l.Conditions = joined(before, l.Conditions)
		status.Listeners = append(status.Listeners, l)
	}
	if equality.Semantic.DeepEqual(status.Addresses, have.Addresses) && equality.Semantic.DeepEqual(status.Conditions, have.Conditions) &&
		equality.Semantic.DeepEqual(status.Listeners, have.Listeners) {
		return nil
	}
	return o.patch(ctx, g.Gateway, map[string]any{"metadata": map[string]any{"resourceVersion": g.Gateway.ResourceVersion},
		"status": map[string]any{"addresses": status.Addresses, "conditions": status.Conditions, "listeners": status.Listeners}}, "status")
}

func (o *objects) reportRoute(ctx context.Context, r *mapping.RouteObject) error {
	have := parentsOf(r.Route)
	parents := make([]gw.RouteParentStatus, 0, len(r.Parents)) // null is none of a route's
	for _, p := range r.Parents {
		i := slices.IndexFunc(have, func(other gw.RouteParentStatus) bool {
			return other.ControllerName == p.ControllerName && equality.Semantic.DeepEqual(other.ParentRef, p.ParentRef)
		})
		var before []metav1.Condition
		if i >= 0 {
			before = have[i].Conditions
		}
		p.Conditions = joined(before, p.Conditions)
		parents = append(parents, p)
	}
	if equality.Semantic.DeepEqual(parents, have) {
		return nil
	}
	return o.patch(ctx, r.Route, map[string]any{"metadata": map[string]any{"resourceVersion": r.Route.GetResourceVersion()}, "status": map[string]any{"parents": parents}}, "status")
}

func parentsOf(route mapping.Referent) []gw.RouteParentStatus {
	switch r := route.(type) {
	case *gw.TCPRoute:
		return r.Status.Parents
	case *gw.UDPRoute:
		return r.Status.Parents
	case *gw.TLSRoute:
		return r.Status.Parents
	}
	return nil
}

func (o *objects) reportClass(ctx context.Context, c *mapping.ClassObject) error {
	conditions := joined(c.Class.Status.Conditions, []metav1.Condition{c.Condition})
	if equality.Semantic.DeepEqual(conditions, c.Class.Status.Conditions) {
		return nil
	}
	return o.patch(ctx, c.Class, map[string]any{"metadata": map[string]any{"resourceVersion": c.Class.ResourceVersion}, "status": map[string]any{"conditions": conditions}}, "status")
}

// derive makes the Service of a listener, or changes it.
func (o *objects) derive(ctx context.Context, d *mapping.Derived) (err error) {
	have := d.Have
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	switch services := o.client.CoreV1().Services(d.Want.Namespace); {
	case have == nil:
		have, err = services.Create(limited, d.Want, metav1.CreateOptions{})
	case !d.Unchanged():
		have, err = services.Update(limited, d.Changed(), metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	return o.report(ctx, have, mapping.Ingress(d.Want))
}

// remove removes the Service of a listener, unless somebody has made another one of its name.
func (o *objects) remove(ctx context.Context, s mapping.Referent) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	uid := s.GetUID()
	err := o.client.CoreV1().Services(s.GetNamespace()).Delete(ctx, s.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
