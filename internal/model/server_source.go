package model

import (
	"fmt"
	"net/netip"
	"strings"
	"unicode"
)

// ServerSource is where controllers learn the servers of a service. The zero value: they are listed.
type ServerSource struct {
	From SourceKind `json:"from"`
	// Of DNS.
	Name      string          `json:"name,omitempty"`      // absolute: no search list is tried
	Record    SourceRecord    `json:"record,omitempty"`    // what is asked for
	Family    SourceFamily    `json:"family,omitempty"`    // of addresses that are asked for
	Resolver  string          `json:"resolver,omitempty"`  // address, or address:port; empty: those of the controller's host
	Transport SourceTransport `json:"transport,omitempty"` // that queries go by
	// Of Consul. The agent is a name: its URL and secrets are on the controllers' hosts.
	Service    string `json:"service,omitempty"`
	Agent      string `json:"agent,omitempty"`      // empty: DefaultAgent
	Datacenter string `json:"datacenter,omitempty"` // empty: the agent's
	Tag        string `json:"tag,omitempty"`        // that instances have; empty: all
	// Of a file, below the controllers' --sources-dir.
	Path string `json:"path,omitempty"`
}

// DefaultAgent is the agent of Consul that is asked where none is named.
const DefaultAgent = "default"

// IsZero reports whether servers are listed.
func (o ServerSource) IsZero() bool { return o == ServerSource{} }

// String says in a few words what is asked, for people: "dns web.example.com".
func (o ServerSource) String() string {
	switch o.From {
	case SourceDNS:
		return "dns " + o.Name
	case SourceConsul:
		return "consul " + o.Service
	case SourceFile:
		return "file " + o.Path
	default:
		return o.From.String()
	}
}

func (o *ServerSource) validate(path string, found *findings) {
	checkChoice(path+".from", sourceNames, o.From, found)
	checkChoice(path+".record", recordNames, o.Record, found)
	checkChoice(path+".family", sourceFamilyNames, o.Family, found)
	checkChoice(path+".transport", transportNames, o.Transport, found)
	only := func(key string, given bool, kind SourceKind) {
		if given && o.From != kind {
			found.add(path+"."+key, fmt.Sprintf("remove it, or use from: %s", kind), "servers from %s have none", o.From)
		}
	}
	only("name", o.Name != "", SourceDNS)
	only("record", o.Record != 0, SourceDNS)
	only("family", o.Family != 0, SourceDNS)
	only("resolver", o.Resolver != "", SourceDNS)
	only("transport", o.Transport != 0, SourceDNS)
	only("service", o.Service != "", SourceConsul)
	only("agent", o.Agent != "", SourceConsul)
	only("datacenter", o.Datacenter != "", SourceConsul)
	only("tag", o.Tag != "", SourceConsul)
	only("path", o.Path != "", SourceFile)
	switch o.From {
	case SourceFile:
		checkBelow(path+".path", o.Path, found)
	case SourceConsul:
		o.validateConsul(path, found)
	}
	if o.From == SourceDNS {
		checkDomain(path+".name", o.Name, found)
		if o.Resolver != "" {
			checkResolver(path+".resolver", o.Resolver, found)
		}
	}
}

func (o *ServerSource) validateConsul(path string, found *findings) {
	if o.Service == "" {
		found.add(path+".service", "name the service in Consul, like web", "missing")
	}
	for _, field := range [...]struct{ key, value string }{{"service", o.Service}, {"agent", o.Agent}, {"datacenter", o.Datacenter}} { // parts of URLs and names of files
		if strings.Trim(field.value, nameLetters+".") != "" || strings.HasPrefix(field.value, ".") || len(field.value) > maxSourceName {
			found.add(path+"."+field.key, "use letters, digits and . _ -", "%.80q is not a name", field.value)
		}
	}
	if len(o.Tag) > maxSourceName {
		found.add(path+".tag", fmt.Sprintf("use at most %d bytes", maxSourceName), "%d bytes", len(o.Tag))
	}
}

// checkBelow refuses files outside the folder that the controllers' hosts allow: whoever may change the fleet may not read their keys.
func checkBelow(path, file string, found *findings) {
	const remedy = "name a file below files/ of the controllers' --sources-dir, like web.yaml"
	if file == "" {
		found.add(path, remedy, "missing")
		return
	}
	for part := range strings.SplitSeq(file, "/") {
		if part == "" || part == "." || part == ".." || len(file) > maxSourceName || strings.ContainsFunc(part, unicode.IsControl) {
			found.add(path, remedy, "%.80q is not below it", file)
			return
		}
	}
}

const maxSourceName = 253 // bytes

const nameLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

// checkDomain refuses what is no name of the DNS, or an address in place of one. Names of SRV records begin with underscores.
func checkDomain(path, name string, found *findings) {
	const remedy = "write it like web.example.com"
	if name == "" {
		found.add(path, remedy, "missing")
		return
	}
	if _, err := netip.ParseAddr(name); err == nil {
		found.add(path, "list servers whose addresses are known", "%q is an address, not a name", name)
		return
	}
	absolute := strings.TrimSuffix(name, ".")
	if len(absolute) > 253 {
		found.add(path, remedy, "%d characters, a name has at most 253", len(absolute))
		return
	}
	for label := range strings.SplitSeq(absolute, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, nameLetters) != "" {
			found.add(path, remedy, "%q is not a name of the DNS", name)
			return
		}
	}
}

func checkResolver(path, text string, found *findings) {
	address, err := netip.ParseAddr(text)
	if at, failed := netip.ParseAddrPort(text); failed == nil && at.Port() != 0 {
		address, err = at.Addr(), nil
	}
	if err != nil || address.IsUnspecified() || address.IsMulticast() {
		found.add(path, "write it like 10.0.0.53 or 10.0.0.53:5353", "%q is not the address of a resolver", text)
	}
}
