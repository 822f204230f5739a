package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	mapping "github.com/ballast-lb/ballast/internal/machine/kube"
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

// objects are Services of the API server, to be changed.
type objects struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	said     map[types.NamespacedName][]string // events of the last pass, not to be repeated
}

// patch is a merge patch of a Service.
func (o *objects) patch(ctx context.Context, s *corev1.Service, of map[string]any, subresources ...string) error {
	text, err := json.Marshal(of)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = o.client.CoreV1().Services(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, text, metav1.PatchOptions{}, subresources...)
	if apierrors.IsNotFound(err) {
		return nil // it is gone: there is nothing to be changed
	}
	if err != nil {
		return fmt.Errorf("change Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}

// finalize puts our finalizer on a Service, or takes it off. It is refused if somebody else has changed the Service: their finalizers stay.
func (o *objects) finalize(ctx context.Context, s *corev1.Service, finalizer string, wanted bool) error {
	list := slices.DeleteFunc(slices.Clone(s.Finalizers), func(f string) bool { return f == finalizer })
	if wanted {
		list = append(list, finalizer)
	}
	if len(list) == 0 {
		list = nil // removes the field
	}
	return o.patch(ctx, s, map[string]any{"metadata": map[string]any{"finalizers": list, "resourceVersion": s.ResourceVersion}})
}

// report writes the addresses of a Service into its status.
func (o *objects) report(ctx context.Context, s *corev1.Service, addresses []netip.Addr) error {
	if slices.Equal(ingress(s), addresses) {
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

// ingress are the addresses in a Service's status; what else is there is one that is not valid.
func ingress(s *corev1.Service) (list []netip.Addr) {
	for _, i := range s.Status.LoadBalancer.Ingress {
		a, _ := netip.ParseAddr(i.IP)
		list = append(list, a)
	}
	return list
}

// warn has people see events, those of the last pass not again.
func (o *objects) warn(events []mapping.Event) {
	now := map[types.NamespacedName][]string{}
	for _, e := range events {
		key := types.NamespacedName{Namespace: e.Service.Namespace, Name: e.Service.Name}
		text := e.Reason + " " + e.Message
		if !slices.Contains(o.said[key], text) {
			o.recorder.Event(e.Service, corev1.EventTypeWarning, e.Reason, shorten(e.Message))
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
