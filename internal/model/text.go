package model

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// ParseNumber reads a decimal number from least to most. Where 0 stands for "not given", it is out of the range. The error is *Invalid.
func ParseNumber[N ~int | ~uint8 | ~uint16 | ~uint32](text string, least, most N) (N, error) {
	parsed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, &Invalid{Problem: fmt.Sprintf("%q is not such a number", text), Remedy: fmt.Sprintf("use a decimal number from %d to %d", least, most)}
	}
	if parsed < uint64(least) || parsed > uint64(most) {
		return 0, &Invalid{Problem: text + " is out of range", Remedy: fmt.Sprintf("use %d to %d", least, most)}
	}
	return N(parsed), nil
}

// Counted is a number of things for people, with what is said of them: 1 server is, 2 servers are.
func Counted[N ~int | ~uint8 | ~uint16 | ~uint32 | ~uint64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// namesShown is how many names Some lists.
const namesShown = 3

// Some lists names for people, and how many more there are than fit.
func Some(names []string) string {
	if len(names) <= namesShown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:namesShown], ", "), len(names)-namesShown)
}

// ParsePrefix reads an address with a length. Empty: none.
func ParsePrefix(text string) (Prefix, error) {
	if text == "" {
		return Prefix{}, nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return Prefix{}, &Invalid{Problem: fmt.Sprintf("%q is no prefix of addresses", text), Remedy: "write it like 0.0.0.0/0 or 2001:db8::/32"}
	}
	return Prefix{prefix}, nil
}

// ParseAddress reads an IP address. The error is *Invalid.
func ParseAddress(text string) (netip.Addr, error) {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return address, &Invalid{Problem: fmt.Sprintf("%q is not an IP address", text), Remedy: "write it like 198.51.100.10 or 2001:db8::10"}
	}
	return address, nil
}
