package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
)

// AllowedKey is struct allowed_key.
type AllowedKey struct {
	Prefix  uint32
	List    uint32
	Address [16]byte
}

// listBits is what comes before the address in an AllowedKey.
const listBits = 32

// AllowedAt is where a prefix lies that is in a list.
func AllowedAt(list uint32, prefix netip.Prefix) AllowedKey {
	key := AllowedKey{Prefix: listBits + uint32(prefix.Bits()), List: list << 1, Address: WireAddress(prefix.Addr())}
	if prefix.Addr().Is6() {
		key.List |= 1
	}
	return key
}

// Allowed is the list, and the prefix in it.
func (k AllowedKey) Allowed() (list uint32, prefix netip.Prefix) {
	address := netip.AddrFrom16(k.Address)
	if k.List&1 == 0 {
		address = netip.AddrFrom4([4]byte(k.Address[:4]))
	}
	return k.List >> 1, netip.PrefixFrom(address, int(k.Prefix)-listBits)
}

// lists is how many lists there may be: old and new stand side by side.
func (l Limits) lists() uint32 { return 2 * l.Services }

// Allowed is how many prefixes of clients there is room for.
func (l Limits) Allowed() uint32 { return l.lists() * model.MaxAllowed }

// WriteAllowed fills a list that no packet can see yet; DeleteAllowed empties one that none can see any more.
type (
	WriteAllowed struct {
		List     uint32
		Prefixes []netip.Prefix
	}
	DeleteAllowed struct {
		List     uint32
		Prefixes []netip.Prefix
	}
)

func (WriteAllowed) change()  {}
func (DeleteAllowed) change() {}

func sorted(prefixes []netip.Prefix) []netip.Prefix {
	return slices.SortedFunc(slices.Values(prefixes), func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
}

// publishAllowed writes a list of its own for the service, if its list has changed: no packet finds a part of one.
func (u *update) publishAllowed(p *published, img image, fresh bool) (moved bool, err error) {
	if !fresh && slices.Equal(p.image.allow, img.allow) {
		return false, nil
	}
	to := span{}
	if len(img.allow) > 0 {
		if to, err = u.tables.lists.take(1); err != nil {
			return false, err
		}
		u.add(WriteAllowed{to.base, img.allow})
	}
	u.dropAllowed(p)
	p.allowed = to
	return true, nil
}

func (u *update) dropAllowed(p *published) {
	if p.allowed.count > 0 {
		u.after = append(u.after, DeleteAllowed{p.allowed.base, p.image.allow})
		u.tables.lists.give(p.allowed)
	}
}

// clearLists empties lists that an update left that was cut off.
func (u *update) clearLists() {
	for _, list := range sortedKeys(u.tables.unlisted, cmp.Compare[uint32]) {
		u.add(DeleteAllowed{list, u.tables.unlisted[list]})
	}
	u.tables.unlisted = nil
}
