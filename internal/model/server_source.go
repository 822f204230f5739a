package model

import (
	"fmt"
	"net/netip"
	"strings"
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
}

// IsZero reports whether servers are listed.
func (o ServerSource) IsZero() bool { return o == ServerSource{} }

// String says in a few words what is asked, for people: "dns web.example.com".
func (o ServerSource) String() string {
	switch o.From {
	case SourceDNS:
		return "dns " + o.Name
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
	if o.From == SourceDNS {
		checkDomain(path+".name", o.Name, found)
		if o.Resolver != "" {
			checkResolver(path+".resolver", o.Resolver, found)
		}
	}
}

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
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
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
