// Which addresses are for network functions (bpf/lb/state/functions.h).
package lb

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/plan"
)

// functionPrefix is struct function_prefix.
type functionPrefix struct {
	Bits    uint32
	Address [16]byte
}

// functionHost is FUNCTION_HOST.
const functionHost = 1<<32 - 1

// notForFunctions are addresses that no router forwards to, or that mean something on each link (RFC 6890).
var notForFunctions = []netip.Prefix{
	netip.MustParsePrefix("::ffff:0:0/96"), // IPv4, unless there are functions for it
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("255.255.255.255/32"), netip.MustParsePrefix("::/127"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
}

func wirePrefix(p netip.Prefix) functionPrefix {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return functionPrefix{uint32(bits), p.Addr().As16()}
}

// SetHostAddresses says which addresses are this host's: what is for them is for no function.
func (lb *LB) SetHostAddresses(addresses []netip.Addr) error {
	addresses = slices.SortedFunc(slices.Values(addresses), netip.Addr.Compare)
	if slices.Equal(addresses, lb.host) {
		return nil
	}
	lb.host = addresses
	return lb.followPrefixes()
}

// enableFunctions sets the switch, which is this process's own, as the pinned maps need it.
func (lb *LB) enableFunctions() error {
	prefixes, err := readMap[functionPrefix, uint32](lb.objects.FunctionPrefixes)
	if err != nil {
		return fmt.Errorf("read prefixes of network functions: %w", err)
	}
	lb.functions = len(prefixes) > 0
	return lb.switchFunctions()
}

func (lb *LB) switchFunctions() error {
	enabled := uint32(0)
	if lb.functions {
		enabled = 1
		if err := lb.objects.need(slices.Concat(programsOfReplicas, programsOfFunctions)); err != nil {
			return err
		}
	}
	return lb.objects.FunctionsEnabled.Set(enabled)
}

// followPrefixes makes the prefixes those of the services, and of what is for no function.
func (lb *LB) followPrefixes() error {
	vips, err := lb.VIPs()
	if err != nil {
		return err
	}
	wanted := map[functionPrefix]uint32{}
	for key, number := range vips {
		if prefix, functions := key.Functions(); functions {
			wanted[wirePrefix(prefix)] = number
		}
	}
	if lb.functions = len(wanted) > 0; lb.functions {
		lb.keepFromFunctions(wanted, vips)
	} else if err := lb.switchFunctions(); err != nil {
		return err
	}
	now, err := readMap[functionPrefix, uint32](lb.objects.FunctionPrefixes)
	if err != nil {
		return fmt.Errorf("read prefixes of network functions: %w", err)
	}
	for key, number := range wanted {
		if before, ok := now[key]; ok && before == number {
			continue
		}
		if err := lb.objects.FunctionPrefixes.Put(key, number); err != nil {
			return fmt.Errorf("write prefixes of network functions: %w", err)
		}
	}
	for key := range now {
		if _, stays := wanted[key]; !stays {
			if err := lb.objects.FunctionPrefixes.Delete(key); err != nil {
				return fmt.Errorf("remove prefixes of network functions: %w", err)
			}
		}
	}
	return lb.switchFunctions()
}

// keepFromFunctions adds what no function gets: packets to this host, to the VIPs of other services, and to addresses that no router forwards to.
func (lb *LB) keepFromFunctions(wanted map[functionPrefix]uint32, vips map[plan.VIPKey]uint32) {
	keep := func(p netip.Prefix, number uint32) {
		if key := wirePrefix(p); wanted[key] == 0 {
			wanted[key] = number
		}
	}
	for _, address := range lb.host {
		keep(netip.PrefixFrom(address.Unmap(), address.Unmap().BitLen()), functionHost)
	}
	for key := range vips {
		if key.IsAddress() {
			keep(netip.PrefixFrom(key.VIP(), key.VIP().BitLen()), 0)
		}
	}
	for _, p := range notForFunctions {
		keep(p, 0)
	}
}
