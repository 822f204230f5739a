package model

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// BGP is how a load balancer announces VIPs to routers. The zero value is that of one that does not.
type BGP struct {
	AS           uint32      `json:"as"`
	RouterID     RouterID    `json:"router_id,omitzero"`
	Neighbors    []Neighbor  `json:"neighbors"`
	NeighborAS   uint32      `json:"neighbor_as,omitempty"` // of neighbours that do not say their own
	ListenPort   uint16      `json:"listen_port,omitempty"` // 0: it only connects
	PasswordFile string      `json:"password_file,omitempty"`
	HoldTime     Duration    `json:"hold_time"`
	Keepalive    Duration    `json:"keepalive"`
	ConnectRetry Duration    `json:"connect_retry"`
	RestartTime  Duration    `json:"restart_time"`           // RFC 4724: for so long routers keep routes while the daemon is away
	Multihop     uint8       `json:"multihop,omitempty"`     // TTL of what is sent; 0: neighbours are on a link of this host
	TTLSecurity  uint8       `json:"ttl_security,omitempty"` // RFC 5082: hops that a neighbour is away at most; 0: anything is taken
	Communities  []Community `json:"communities,omitempty"`
	MED          uint32      `json:"med,omitempty"`
	Announce     Announce    `json:"announce"`
	Delay        Duration    `json:"announce_delay"`
	BFD          BFD         `json:"bfd,omitzero"`
}

// BFD is how fast neighbours notice that a load balancer is gone (RFC 5880). Interval 0: they do not use it.
type BFD struct {
	Interval   Duration `json:"interval"`
	Multiplier uint8    `json:"multiplier"`
}

// RouterID is an IPv4 address, or none.
type RouterID struct{ netip.Addr }

// IsZero reports whether there is none; a file leaves it out then.
func (id RouterID) IsZero() bool { return !id.IsValid() }

// Neighbor is a router. AS 0: that of BGP.NeighborAS.
type Neighbor struct {
	Address netip.Addr
	AS      uint32
}

// Community is one of RFC 1997.
type Community uint32

// Implementation constants: bounds of BGP.
const (
	MaxNeighbors        = 16
	MaxCommunities      = 32
	MinHoldTime         = Duration(3 * time.Second)
	MaxHoldTime         = Duration(18 * time.Hour)
	DefaultHoldTime     = Duration(90 * time.Second)
	MinConnectRetry     = Duration(2 * time.Second)
	DefaultConnectRetry = Duration(5 * time.Second)
	MaxRestartTime      = Duration(4095 * time.Second) // 12 bits
	DefaultRestartTime  = Duration(2 * time.Minute)
	MinAnnounceDelay    = Duration(100 * time.Millisecond)
	DefaultAnnounce     = Duration(5 * time.Second)
	MinBFDInterval      = Duration(50 * time.Millisecond)
	MaxBFDInterval      = Duration(time.Minute)
	DefaultBFD          = 3
)

// IsZero reports whether nothing is given.
func (b BGP) IsZero() bool { return reflect.ValueOf(b).IsZero() }

// Equal reports whether both say the same.
func (b *BGP) Equal(other *BGP) bool { return reflect.DeepEqual(b, other) }

// ParseNeighbor reads an address, or one with its AS: 10.0.0.1 as 64512. The error is *Invalid.
func ParseNeighbor(text string) (n Neighbor, err error) {
	address, as, given := strings.Cut(text, " as ")
	if n.Address, err = ParseAddress(strings.TrimSpace(address)); err == nil && given {
		n.AS, err = ParseNumber[uint32](strings.TrimSpace(as), 1, 1<<32-1)
	}
	return n, err
}

func (n Neighbor) String() string {
	if n.AS == 0 {
		return n.Address.String()
	}
	return fmt.Sprintf("%s as %d", n.Address, n.AS)
}

func (n Neighbor) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

func (n *Neighbor) UnmarshalText(text []byte) (err error) {
	*n, err = ParseNeighbor(string(text))
	return err
}

// ASOf is the AS that a neighbour must be in.
func (b *BGP) ASOf(n Neighbor) uint32 {
	if n.AS != 0 {
		return n.AS
	}
	return b.NeighborAS
}

// wellKnown are the communities of RFC 1997 and RFC 7999 that have a name.
var wellKnown = map[string]Community{"no-export": 0xffffff01, "no-advertise": 0xffffff02, "no-export-subconfed": 0xffffff03, "blackhole": 0xffff029a}

// ParseCommunity reads 64512:100, or the name of one that is well known. The error is *Invalid.
func ParseCommunity(text string) (Community, error) {
	if known, ok := wellKnown[text]; ok {
		return known, nil
	}
	high, low, _ := strings.Cut(text, ":")
	a, err := strconv.ParseUint(high, 10, 16)
	b, err2 := strconv.ParseUint(low, 10, 16)
	if err != nil || err2 != nil {
		return 0, &Invalid{Problem: fmt.Sprintf("%q is no community", text), Remedy: "write it like 64512:100, or no-export"}
	}
	return Community(a<<16 | b), nil
}

func (c Community) String() string {
	for name, known := range wellKnown {
		if c == known {
			return name
		}
	}
	return fmt.Sprintf("%d:%d", uint32(c)>>16, uint32(c)&0xffff)
}

func (c Community) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

func (c *Community) UnmarshalText(text []byte) (err error) {
	*c, err = ParseCommunity(string(text))
	return err
}

func (b *BGP) applyDefaults() {
	if b.IsZero() {
		return
	}
	setDefault(&b.HoldTime, 0, DefaultHoldTime)
	setDefault(&b.Keepalive, 0, b.HoldTime/Duration(3*time.Second)*Duration(time.Second))
	setDefault(&b.ConnectRetry, 0, DefaultConnectRetry)
	setDefault(&b.RestartTime, 0, DefaultRestartTime)
	setDefault(&b.Delay, 0, DefaultAnnounce)
	if b.BFD.Interval != 0 {
		setDefault(&b.BFD.Multiplier, 0, DefaultBFD)
	}
}

func (b *BGP) validate(path string, taken map[netip.Addr]string, found *findings) {
	if b.AS == 0 {
		found.add(path+".as", "give this load balancer's AS, as 64512", "missing")
	}
	b.validateNeighbors(path, taken, found)
	if b.RouterID.IsValid() && (!b.RouterID.Is4() || b.RouterID.IsUnspecified()) {
		found.add(path+".router_id", "use an IPv4 address of this load balancer", "%s is not a router id", b.RouterID)
	} else if !b.RouterID.IsValid() && !slices.ContainsFunc(b.Neighbors, func(n Neighbor) bool { return n.Address.Is4() }) {
		found.add(path+".router_id", "give one: any IPv4 address that no other router has as its id", "missing: only a neighbour with an IPv4 address gives a default")
	}
	b.validateTimers(path, found)
	if b.Multihop != 0 && b.TTLSecurity != 0 {
		found.add(path+".ttl_security", "use ttl_security alone: it says how many hops", "multihop sends with another TTL than the 255 that ttl_security is about")
	}
	if b.PasswordFile != "" && !strings.HasPrefix(b.PasswordFile, "/") {
		found.add(path+".password_file", "give the whole path", "%q depends on where the daemon was started", b.PasswordFile)
	}
	if b.PasswordFile != "" && b.ListenPort != 0 {
		found.add(path+".listen_port", "remove it: the load balancer connects to its neighbours", "sessions with a password are not accepted, only made")
	}
	if len(b.Communities) > MaxCommunities {
		found.add(path+".communities", fmt.Sprintf("use at most %d", MaxCommunities), "%d communities", len(b.Communities))
	}
	checkChoice(path+".announce", announceNames, b.Announce, found)
	b.validateBFD(path+".bfd", found)
}

func (b *BGP) validateNeighbors(path string, taken map[netip.Addr]string, found *findings) {
	if len(b.Neighbors) == 0 || len(b.Neighbors) > MaxNeighbors {
		found.add(path+".neighbors", fmt.Sprintf("give the addresses of 1 to %d routers", MaxNeighbors), "%d neighbours", len(b.Neighbors))
	}
	for i, n := range b.Neighbors {
		at := fmt.Sprintf("%s.neighbors[%d]", path, i)
		checkAddress(at, n.Address, found)
		if n.Address.Is6() && n.Address.IsLinkLocalUnicast() {
			found.add(at, "use the router's global address, or a unique local one", "%s is of one link alone", n.Address)
		}
		if whose, used := taken[n.Address]; used {
			found.add(at, "use the router's own address", "%s is %s", n.Address, whose)
		}
		if slices.ContainsFunc(b.Neighbors[:i], func(other Neighbor) bool { return other.Address == n.Address }) {
			found.add(at, "remove it", "%s is named twice", n.Address)
		}
		if b.ASOf(n) == 0 {
			found.add(at, "write it like "+n.Address.String()+" as 64512, or give neighbor_as", "its AS is missing")
		}
	}
}

func (b *BGP) validateTimers(path string, found *findings) {
	for _, timer := range []struct {
		key          string
		value        Duration
		least, most  Duration
		wholeSeconds bool
	}{
		{"hold_time", b.HoldTime, MinHoldTime, MaxHoldTime, true},
		{"keepalive", b.Keepalive, Duration(time.Second), b.HoldTime, true},
		{"connect_retry", b.ConnectRetry, MinConnectRetry, Duration(time.Hour), true},
		{"restart_time", b.RestartTime, Duration(time.Second), MaxRestartTime, true},
		{"announce_delay", b.Delay, MinAnnounceDelay, Duration(time.Hour), false},
	} {
		checkDuration(path+"."+timer.key, timer.value, timer.least, timer.most, found)
		if timer.wholeSeconds && timer.value%Duration(time.Second) != 0 {
			found.add(path+"."+timer.key, "use whole seconds", "%s: BGP counts seconds", timer.value)
		}
	}
}

func (b *BGP) validateBFD(path string, found *findings) {
	if b.BFD == (BFD{}) {
		return
	}
	if b.BFD.Interval == 0 {
		found.add(path+".interval", "give the time between packets, as 300ms", "missing")
		return
	}
	checkDuration(path+".interval", b.BFD.Interval, MinBFDInterval, MaxBFDInterval, found)
	if b.BFD.Multiplier == 0 {
		found.add(path+".multiplier", "use 3", "0 is out of range")
	}
	if b.Multihop != 0 || b.TTLSecurity > 1 {
		found.add(path, "remove it, or make sessions on the link", "BFD here is that of one hop (RFC 5881), and neighbours may be further away")
	}
}
