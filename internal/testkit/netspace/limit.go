package netspace

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// Implementation constants of limited links.
const (
	limitBurst = 32 << 10 // bytes that may leave at once: a few of the frames that TCP hands down in one piece
	limitQueue = 1 << 20  // bytes that may wait
)

// LimitRate bounds what leaves by an interface with a token bucket filter.
func (s *Space) LimitRate(name string, bitsPerSecond int64) error {
	err := s.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		rate := uint64(bitsPerSecond / 8)
		return netlink.QdiscReplace(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT,
			},
			Rate: rate, Limit: limitQueue, Buffer: netlink.Xmittime(rate, limitBurst),
		})
	})
	if err != nil {
		return fmt.Errorf("limit %s of %s to %d bit/s: %w", name, s.Name, bitsPerSecond, err)
	}
	return nil
}
