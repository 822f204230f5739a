// Advertisements as they are on the wire: authenticated by a key of the fleet's cookies, as what load balancers send each other is.
package segment

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	// EtherType is the OUI Extended EtherType (IEEE 802, 9.2.4). What follows it names an organisation, here one of the locally administered: "bal".
	EtherType = 0x88b7
	// EntriesMax of an advertisement fit into the smallest MTU of IPv6.
	EntriesMax = 50

	magic    = "ballast1" // 8 bytes
	tagBytes = 16
	fixed    = len(magic) + 4 + 8 + 6 + 2 + 1 + 1 + 1 + 1 // up to the names
	entry    = 17
	skewMax  = 30 * time.Second // of the clocks of two load balancers
)

const (
	flagAble = 1 << iota
	flagOwned
	flagHanded
	flagAsked
	flagOff
)

// Errors of Parse.
var (
	ErrForged = errors.New("it has no key of this fleet")
	ErrShape  = errors.New("it is no advertisement")
)

// SkewError is of an advertisement by another clock.
type SkewError struct {
	Name  string
	Ahead time.Duration // of this host's
}

func (e *SkewError) Error() string {
	if e.Ahead < 0 {
		return fmt.Sprintf("the clock of %s is %v behind: its advertisements are not believed: set the clocks (NTP)", e.Name, -e.Ahead.Round(time.Second))
	}
	return fmt.Sprintf("the clock of %s is %v ahead: its advertisements are not believed: set the clocks (NTP)", e.Name, e.Ahead.Round(time.Second))
}

// MAC is an Ethernet address; the zero value is none.
type MAC [6]byte

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// MarshalText is of encoding.TextMarshaler.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what String writes.
func (m *MAC) UnmarshalText(text []byte) error {
	read := MAC{}
	if _, err := fmt.Sscanf(string(text), "%02x:%02x:%02x:%02x:%02x:%02x", &read[0], &read[1], &read[2], &read[3], &read[4], &read[5]); err != nil || read.String() != string(text) {
		return fmt.Errorf("%q is no Ethernet address", text)
	}
	*m = read
	return nil
}

// tag authenticates. The key is for this alone: what is signed here says nothing of cookies.
func tag(key [16]byte, text []byte) []byte {
	derived := hmac.New(sha256.New, key[:])
	derived.Write([]byte("ballast segment advertisement"))
	mac := hmac.New(sha256.New, derived.Sum(nil))
	mac.Write(text)
	return mac.Sum(nil)[:tagBytes]
}

// Bytes are the payload of a frame. Layout: magic, epoch of the key (4), Sent (8), MAC (6), Owned (2), Greets (1), lengths of Name and To (1 each), entries (1), Name, To;
// of each entry flags (1) and the address (16; IPv4 mapped); tag (16). Big endian.
func (a *Advert) Bytes(keys *model.Keys) ([]byte, error) {
	key, known := keys.Cookie[keys.Current]
	if !known || len(a.Name) > 255 || len(a.To) > 255 || len(a.Entries) > 255 {
		return nil, errors.New("no key of cookies is known yet")
	}
	text := append([]byte(magic), make([]byte, 0, 256)...)
	text = binary.BigEndian.AppendUint32(text, keys.Current)
	text = binary.BigEndian.AppendUint64(text, uint64(a.Sent))
	text = append(text, a.MAC[:]...)
	text = binary.BigEndian.AppendUint16(text, a.Owned)
	greets := uint8(0)
	if a.Greets {
		greets = 1
	}
	text = append(text, greets, uint8(len(a.Name)), uint8(len(a.To)), uint8(len(a.Entries)))
	text = append(append(text, a.Name...), a.To...)
	for _, e := range a.Entries {
		flags := uint8(0)
		for flag, set := range map[uint8]bool{flagAble: e.Able, flagOwned: e.Owned, flagHanded: e.Handed, flagAsked: e.Asked, flagOff: e.Off} {
			if set {
				flags |= flag
			}
		}
		address := e.VIP.As16()
		text = append(append(text, flags), address[:]...)
	}
	return append(text, tag(key, text)...), nil
}

// Parse reads a frame's payload, which may be padded. It is an error if it is none of a load balancer of this fleet, or not of now.
func Parse(text []byte, keys *model.Keys, now time.Time) (*Advert, error) {
	if len(text) < fixed+tagBytes || !bytes.HasPrefix(text, []byte(magic)) {
		return nil, ErrShape
	}
	rest := text[len(magic):]
	epoch, sent := binary.BigEndian.Uint32(rest), binary.BigEndian.Uint64(rest[4:])
	a := &Advert{Sent: int64(sent), MAC: MAC(rest[12:18]), Owned: binary.BigEndian.Uint16(rest[18:]), Greets: rest[20] == 1}
	name, to, entries := int(rest[21]), int(rest[22]), int(rest[23])
	end := fixed + name + to + entries*entry
	if len(text) < end+tagBytes || name == 0 {
		return nil, ErrShape
	}
	key, known := keys.Cookie[epoch]
	if !known || !hmac.Equal(tag(key, text[:end]), text[end:end+tagBytes]) {
		return nil, ErrForged
	}
	a.Name, a.To = string(text[fixed:fixed+name]), string(text[fixed+name:fixed+name+to])
	for at := fixed + name + to; at < end; at += entry {
		flags := text[at]
		a.Entries = append(a.Entries, Entry{VIP: netip.AddrFrom16([16]byte(text[at+1 : at+entry])).Unmap(),
			Able: flags&flagAble != 0, Owned: flags&flagOwned != 0, Handed: flags&flagHanded != 0, Asked: flags&flagAsked != 0, Off: flags&flagOff != 0})
	}
	if ahead := time.Unix(0, a.Sent).Sub(now); ahead > skewMax || ahead < -skewMax {
		return nil, &SkewError{a.Name, ahead}
	}
	return a, nil
}
