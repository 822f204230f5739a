package model

import (
	"fmt"
	"net/netip"
	"slices"
)

// MaxAllowed is how many prefixes of clients a service may allow.
const MaxAllowed = 64

// ParseSources reads a prefix of addresses, or one address. The error is *Invalid.
func ParseSources(text string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return prefix, &Invalid{Problem: fmt.Sprintf("%q is no prefix of addresses", text), Remedy: "write it like 192.0.2.0/24 or 2001:db8::/32"}
	}
	return prefix, nil
}

// validateBeginnings refuses a rule about who begins connections, at a service of which nobody knows when one begins.
func (s *Service) validateBeginnings(at string, found *findings) {
	switch {
	case s.Functions():
		found.add(at, "remove it, and do so at the network functions", "what comes back to functions is from anywhere")
	case s.Replicated():
		found.add(at, "use affinity: cookie, and fallback: second-chance or hash", "packets without a cookie are those of connections in the replicated table, too")
	case s.MPTCP.FirstPort != 0:
		found.add(at, "remove it, or mptcp", "further subflows carry no cookie")
	}
}

// validateAllow refuses prefixes that are not what they seem.
func (s *Service) validateAllow(path string, found *findings) {
	if len(s.Allow) == 0 {
		return
	}
	at := path + ".allow"
	s.validateBeginnings(at, found)
	if len(s.Allow) > MaxAllowed {
		found.add(at, "join prefixes", "%d prefixes, at most %d fit", len(s.Allow), MaxAllowed)
	}
	for i, prefix := range s.Allow {
		at := fmt.Sprintf("%s[%d]", at, i)
		switch {
		case !prefix.IsValid() || prefix.Addr().Zone() != "" || prefix.Addr().Is4In6():
			found.add(at, "write it like 192.0.2.0/24 or 2001:db8::/32", "no prefix of addresses")
		case prefix != prefix.Masked():
			found.add(at, fmt.Sprintf("use %s", prefix.Masked()), "%s has bits behind its length", prefix)
		case slices.Contains(s.Allow[:i], prefix):
			found.add(at, "remove it", "%s is listed twice", prefix)
		case s.VIP.IsValid() && !slices.ContainsFunc(s.VIPs(), func(vip netip.Addr) bool { return vip.Is4() == prefix.Addr().Is4() }):
			found.add(at, "remove it", "clients of %s have %s addresses", s.Where(), family(s.VIP))
		}
	}
}
