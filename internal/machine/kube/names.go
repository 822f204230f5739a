package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ballast-lb/ballast/internal/model"
)

// maxName is how long names in a fleet are at most, in bytes.
const maxName = 63

// Name is that of a Service's service of a protocol in the fleet: NAMESPACE:NAME:tcp, with a prefix if clusters share the fleet. No name of
// Kubernetes has a colon.
func (o *Options) Name(namespace, name string, protocol model.Protocol) string {
	full := namespace + ":" + name + ":" + protocol.String()
	if o.Prefix != "" {
		full = o.Prefix + ":" + full
	}
	return short(full)
}

// listenerName is that of a listener's service: NAMESPACE:GATEWAY:tcp:80. Only these end with a port.
func (o *Options) listenerName(key types.NamespacedName, protocol model.Protocol, port uint16) string {
	name := key.Namespace + ":" + key.Name
	if o.Prefix != "" {
		name = o.Prefix + ":" + name
	}
	end := fmt.Sprintf(":%s:%d", lower(protocol), port)
	return shortened(name, maxName-len(end)) + end
}

// Names are those of all services that a Service can have in the fleet.
func (o *Options) Names(s *corev1.Service) (names []string) {
	for _, protocol := range protocols {
		names = append(names, o.Name(s.Namespace, s.Name, protocol))
	}
	return names
}

func (o *Options) name(key types.NamespacedName, protocol model.Protocol) string {
	return o.Name(key.Namespace, key.Name, protocol)
}

// short makes a name of a length that fleets take: the end of a longer one is the beginning of its hash.
func short(name string) string { return shortened(name, maxName) }

func shortened(name string, most int) string {
	if len(name) <= most {
		return name
	}
	hash := sha256.Sum256([]byte(name))
	const digits = 10
	return name[:most-digits-1] + "." + hex.EncodeToString(hash[:])[:digits]
}
