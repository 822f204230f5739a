package api

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
)

// Values is the query as a URL has it.
func (q *ConnectionQuery) Values() url.Values {
	values := url.Values{}
	set := func(key, value string, zero bool) {
		if !zero {
			values.Set(key, value)
		}
	}
	seconds := func(s Seconds) string { return strconv.FormatFloat(float64(s), 'g', -1, 64) }
	set("service", q.Service, q.Service == "")
	set("server", q.Server, q.Server == "")
	set("client", q.Client.String(), !q.Client.IsValid())
	set("state", q.State, q.State == "")
	set("suspects", "true", !q.Suspects)
	set("min_packets", strconv.FormatUint(q.MinPackets, 10), q.MinPackets == 0)
	set("min_bytes", strconv.FormatUint(q.MinBytes, 10), q.MinBytes == 0)
	set("min_age", seconds(q.MinAge), q.MinAge == 0)
	set("min_idle", seconds(q.MinIdle), q.MinIdle == 0)
	set("sort", q.Sort, q.Sort == "")
	set("limit", strconv.Itoa(q.Limit), q.Limit == 0)
	return values
}

// ParseConnectionQuery undoes Values. Errors are *Error.
func ParseConnectionQuery(values url.Values) (q ConnectionQuery, err error) {
	parse := map[string]func(string) error{
		"service":     func(text string) error { q.Service = text; return nil },
		"server":      func(text string) error { q.Server = text; return nil },
		"state":       func(text string) error { q.State = text; return nil },
		"sort":        func(text string) error { q.Sort = text; return nil },
		"client":      func(text string) (err error) { q.Client, err = ParseNetwork(text); return err },
		"suspects":    func(text string) (err error) { q.Suspects, err = strconv.ParseBool(text); return err },
		"min_packets": func(text string) (err error) { q.MinPackets, err = strconv.ParseUint(text, 10, 64); return err },
		"min_bytes":   func(text string) (err error) { q.MinBytes, err = strconv.ParseUint(text, 10, 64); return err },
		"min_age":     func(text string) (err error) { q.MinAge, err = parseSeconds(text); return err },
		"min_idle":    func(text string) (err error) { q.MinIdle, err = parseSeconds(text); return err },
		"limit":       func(text string) (err error) { q.Limit, err = strconv.Atoi(text); return err },
	}
	for key, given := range values {
		known := parse[key]
		if known == nil {
			return q, BadRequest("there is no filter %q of connections", key)
		}
		for _, text := range given {
			if err := known(text); err != nil {
				return q, BadRequest("filter %s of connections: %s", key, err)
			}
		}
	}
	return q, nil
}

func parseSeconds(text string) (Seconds, error) {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no number of seconds", text)
	}
	return Seconds(value), Seconds(value).Check()
}

// ParseNetwork reads an address, or a prefix of addresses, as the network that it is.
func ParseNetwork(text string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(text); err == nil {
		if address.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%s: an address of one link only: leave out the zone", text)
		}
		address = address.Unmap()
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	network, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is neither an address (203.0.113.7) nor a network (203.0.113.0/24)", text)
	}
	return Network(network)
}

// Network is a valid prefix without the bits that do not matter, and IPv4's own where it is written as IPv6's (::ffff:203.0.113.0/120).
func Network(prefix netip.Prefix) (netip.Prefix, error) {
	const mapped = 96 // bits before the address
	if address := prefix.Addr(); address.Is4In6() {
		if prefix.Bits() < mapped {
			return netip.Prefix{}, fmt.Errorf("%s: a network of IPv4 within IPv6 has %d bits or more: use %s with 0 to 32", prefix, mapped, address.Unmap())
		}
		prefix = netip.PrefixFrom(address.Unmap(), prefix.Bits()-mapped)
	}
	return prefix.Masked(), nil
}
