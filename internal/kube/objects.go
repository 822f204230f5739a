package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	gw "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"

	mapping "github.com/ballast-lb/ballast/internal/machine/kube"
	"github.com/ballast-lb/ballast/internal/model"
)

const (
	// requestTimeout is how long the API server may take for one change.
	requestTimeout = 10 * time.Second
	// maxMessage is how long the message of an Event may be, in bytes.
	maxMessage = 1000
)

// Reasons of events besides those of the mapping.
const (
	reasonAddress = "Address" // a Service has one
	reasonRefused = "Refused" // controllers refuse a service
)

// objects are Services, and objects of the Gateway API, to be changed.
type objects struct {
	client   kubernetes.Interface
	gateways versioned.Interface
	recorder record.EventRecorder
	said     map[string][]string // events of the last pass, not to be repeated, by kind and name of their object
}

// patch is a merge patch of an object.
func (o *objects) patch(ctx context.Context, object mapping.Referent, of map[string]any, subresources ...string) error {
	text, err := json.Marshal(of)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	space, name, kind, how := object.GetNamespace(), object.GetName(), types.MergePatchType, metav1.PatchOptions{}
	switch object.(type) {
	case *corev1.Service:
		_, err = o.client.CoreV1().Services(space).Patch(ctx, name, kind, text, how, subresources...)
	case *gw.Gateway:
		_, err = o.gateways.GatewayV1().Gateways(space).Patch(ctx, name, kind, text, how, subresources...)
	case *gw.GatewayClass:
		_, err = o.gateways.GatewayV1().GatewayClasses().Patch(ctx, name, kind, text, how, subresources...)
	case *gw.TCPRoute:
		_, err = o.gateways.GatewayV1().TCPRoutes(space).Patch(ctx, name, kind, text, how, subresources...)
	case *gw.UDPRoute:
		_, err = o.gateways.GatewayV1().UDPRoutes(space).Patch(ctx, name, kind, text, how, subresources...)
	case *gw.TLSRoute:
		_, err = o.gateways.GatewayV1().TLSRoutes(space).Patch(ctx, name, kind, text, how, subresources...)
	}
	if apierrors.IsNotFound(err) {
		return nil // it is gone: there is nothing to be changed
	}
	if err != nil {
		return fmt.Errorf("change %s %s/%s: %w", kindOf(object), space, name, err)
	}
	return nil
}

// kindOf is what kind of object people call one.
func kindOf(object mapping.Referent) string {
	return reflect.TypeOf(object).Elem().Name()
}

// finalize puts our finalizer on a Service or a Gateway, or takes it off. It is refused if somebody else has changed it: their finalizers stay.
func (o *objects) finalize(ctx context.Context, s mapping.Referent, finalizer string, wanted bool) error {
	list := slices.DeleteFunc(slices.Clone(s.GetFinalizers()), func(f string) bool { return f == finalizer })
	if wanted {
		list = append(list, finalizer)
	}
	if len(list) == 0 {
		list = nil // removes the field
	}
	return o.patch(ctx, s, map[string]any{"metadata": map[string]any{"finalizers": list, "resourceVersion": s.GetResourceVersion()}})
}

// report writes the addresses of a Service into its status.
func (o *objects) report(ctx context.Context, s *corev1.Service, addresses []netip.Addr) error {
	if slices.Equal(mapping.Ingress(s), addresses) {
		return nil
	}
	mode := corev1.LoadBalancerIPModeVIP
	var list []corev1.LoadBalancerIngress
	var texts []string
	for _, a := range addresses {
		list = append(list, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &mode})
		texts = append(texts, a.String())
	}
	err := o.patch(ctx, s, map[string]any{"status": map[string]any{"loadBalancer": map[string]any{"ingress": list}}}, "status")
	if err == nil && len(list) > 0 {
		o.recorder.Event(s, corev1.EventTypeNormal, reasonAddress, strings.Join(texts, ", "))
	}
	return err
}

// warn has people see events, those of the last pass not again.
func (o *objects) warn(events []mapping.Event) {
	now := map[string][]string{}
	for _, e := range events {
		key := kindOf(e.Object) + " " + e.Object.GetNamespace() + "/" + e.Object.GetName()
		text := e.Reason + " " + e.Message
		if !slices.Contains(o.said[key], text) {
			o.recorder.Event(e.Object, corev1.EventTypeWarning, e.Reason, shorten(model.ForPeople(e.Message)))
		}
		now[key] = append(now[key], text)
	}
	o.said = now
}

func shorten(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + " ..."
}
