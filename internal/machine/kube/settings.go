package kube

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/schema"
	"github.com/ballast-lb/ballast/internal/yamltree"
)

// Annotations that are no fields of a service, without the prefix.
const (
	poolKey    = "pool"
	sharingKey = "sharing-key"
	// replaceKey names the affinity that may be replaced though connections break: of the one before, so that a later change is asked about again.
	replaceKey = "replace-affinity"
)

// settings are what a Service asks for.
type settings struct {
	valid     bool
	addresses []netip.Addr // requested
	pool      string
	sharing   string
	replace   string // affinity
	allow     []netip.Prefix
	fields    []given
}

// given is a field that an annotation sets.
type given struct {
	key      string // of the annotation, without the prefix
	protocol model.Protocol
	schema.Field[model.Service]
	elements []string
}

// forbidden are fields that no annotation sets, and why; of keys that end with . or _, all that begin so.
var forbidden = []struct{ key, why string }{
	{"name", "it follows from the Service's namespace and name"},
	{"owner", "it is the program that keeps the service"},
	{"destinations", "network functions are not Services"},
	{"protocol", "it follows from spec.ports"},
	{"ports", "they follow from spec.ports"},
	{"allow", "use spec.loadBalancerSourceRanges"},
	{"return", "nodes answer clients themselves"},
	{"mptcp.", "the node translates connections to pods, and the agent does not see their subflows"},
	{"session", "the node translates connections to pods, and this needs sockets of the node"},
	{"session_", "the node translates connections to pods, and this needs sockets of the node"},
	{"syn_", "the node translates connections to pods, and this needs sockets of the node"},
	{"table.", "operators of the fleet decide on memory of load balancers"},
	{"table_", "it follows from the number of nodes"},
	{"load.endpoint", "it would have every node ask a URL"},
	{"health.command", "it would run a program on load balancers"},
}

// forbiddenValues are values of fields that an annotation may set otherwise.
var forbiddenValues = map[string]map[string]string{
	"health.check": {"exec": "it would run a program on load balancers"},
	"load.source":  {"endpoint": "it would have every node ask a URL"},
	"forward":      {"nat": "nodes answer clients themselves"},
	"affinity":     {"quic": "pods do not know the ids of their node", "table": "operators of the fleet decide on memory of load balancers"},
}

// read reads what a Service asks for, and refuses it if that cannot be had.
func (m *mapping) read(s *ours) settings {
	var g settings
	problems := g.annotations(s.Service)
	if s.gateway != nil {
		if len(g.addresses) > 0 {
			problems = append(problems, AnnotationPrefix+"vips: not to be set for Gateways: use spec.addresses")
		}
		g.addresses = s.gateway.requested
	} else {
		problems = append(problems, g.spec(s.Service)...)
	}
	if len(problems) > 0 {
		m.refuse(s, ReasonInvalid, strings.Join(problems, "; "))
	}
	if s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		m.refuse(s, ReasonPolicy, "spec.externalTrafficPolicy is Cluster: a node would pass connections on to others, hide the client's address, and break them when it leaves: use Local")
	}
	g.valid = !s.refused
	s.fallback = s.refused
	return g
}

func (g *settings) annotations(s *corev1.Service) (problems []string) {
	for _, annotation := range slices.Sorted(maps.Keys(s.Annotations)) {
		key, ours := strings.CutPrefix(annotation, AnnotationPrefix)
		if !ours {
			continue
		}
		if err := g.annotation(key, strings.TrimSpace(s.Annotations[annotation])); err != nil {
			problems = append(problems, annotation+": "+err.Error())
		}
	}
	return problems
}

func (g *settings) annotation(key, value string) error {
	switch {
	case value == "":
		return &model.Invalid{Problem: "empty", Remedy: "give a value, or remove the annotation"}
	case key == poolKey:
		g.pool = value
		return nil
	case key == sharingKey:
		g.sharing = value
		return nil
	case key == replaceKey:
		g.replace = value
		return nil
	case key == "vip" || key == "vips":
		return g.request(value)
	}
	one := given{key: key}
	if rest, cut := strings.CutPrefix(key, "tcp."); cut {
		key, one.protocol = rest, model.ProtocolTCP
	} else if rest, cut := strings.CutPrefix(key, "udp."); cut {
		key, one.protocol = rest, model.ProtocolUDP
	}
	for _, f := range forbidden {
		if key == f.key || strings.HasPrefix(key, f.key) && strings.Trim(f.key[len(f.key)-1:], "._") == "" {
			return &model.Invalid{Problem: "not to be set for Services: " + f.why, Remedy: "remove the annotation"}
		}
	}
	if why := forbiddenValues[key][value]; why != "" {
		return &model.Invalid{Problem: value + " is not to be had for Services: " + why, Remedy: "use another value"}
	}
	i := slices.IndexFunc(schema.Service, func(f schema.Field[model.Service]) bool { return f.Key == key })
	if i < 0 {
		return unknown(key)
	}
	if one.Field, one.elements = schema.Service[i], []string{value}; one.List != "" {
		one.elements = strings.Split(value, one.List)
	}
	g.fields = append(g.fields, one)
	scratch := model.NewService()
	return one.set(&scratch)
}

// unknown names what a key may have been meant for.
func unknown(key string) error {
	names := []string{poolKey, sharingKey, replaceKey, "vips"}
	for _, f := range schema.Service {
		names = append(names, f.Key)
	}
	remedy := "use a key of a service (docs/run/configure.md), " + poolKey + " or " + sharingKey
	if near := yamltree.Near(key, names); len(near) > 0 {
		remedy = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return &model.Invalid{Problem: "there is no such setting", Remedy: remedy}
}

func (f *given) set(s *model.Service) error {
	for _, element := range f.elements {
		if err := f.Set(s, strings.TrimSpace(element)); err != nil {
			return err
		}
	}
	return nil
}

// request notes addresses that the Service wants.
func (g *settings) request(list string) error {
	for text := range strings.SplitSeq(list, ",") {
		a, err := model.ParseAddress(strings.TrimSpace(text))
		if err != nil {
			return err
		}
		if !slices.Contains(g.addresses, a) {
			g.addresses = append(g.addresses, a)
		}
	}
	if len(g.addresses) > model.MaxVIPs {
		return &model.Invalid{Problem: fmt.Sprintf("%d addresses", len(g.addresses)), Remedy: fmt.Sprintf("request at most %d", model.MaxVIPs)}
	}
	return nil
}

// spec reads what is not an annotation.
func (g *settings) spec(s *corev1.Service) (problems []string) {
	if ip := s.Spec.LoadBalancerIP; ip != "" && len(g.addresses) == 0 {
		if err := g.request(ip); err != nil {
			problems = append(problems, "spec.loadBalancerIP: "+err.Error())
		}
	}
	for i, text := range s.Spec.LoadBalancerSourceRanges {
		prefix, err := model.ParseSources(strings.TrimSpace(text))
		if err != nil {
			problems = append(problems, fmt.Sprintf("spec.loadBalancerSourceRanges[%d]: %s", i, err))
			continue
		}
		if prefix = prefix.Masked(); !slices.Contains(g.allow, prefix) {
			g.allow = append(g.allow, prefix)
		}
	}
	if !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return protocolOf(&p) != 0 }) {
		problems = append(problems, "spec.ports: none is of TCP or UDP: load balancers forward nothing else")
	}
	return problems
}

// allowed are the clients that may connect to addresses, of those that the Service names: ranges of families that the addresses are not of
// say nothing of them. none: there are ranges, and none is of theirs.
func (g *settings) allowed(vips []netip.Addr) (allow []netip.Prefix, none bool) {
	for _, prefix := range g.allow {
		if slices.ContainsFunc(vips, func(vip netip.Addr) bool { return vip.Is4() == prefix.Addr().Is4() }) {
			allow = append(allow, prefix)
		}
	}
	return allow, len(g.allow) > 0 && len(allow) == 0
}

// reasonsOf are objections to the only service of a fleet, in the words of annotations.
func reasonsOf(err error) string {
	var list []string
	for _, one := range unjoin(err) {
		var invalid *model.Invalid
		if !errors.As(one, &invalid) {
			list = append(list, one.Error())
			continue
		}
		path := invalid.Path
		if _, rest, below := strings.Cut(path, "]."); below {
			path = rest
		}
		list = append(list, (&model.Invalid{Path: path, Problem: invalid.Problem, Remedy: invalid.Remedy}).Error())
	}
	return strings.Join(list, "; ")
}

func unjoin(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}
