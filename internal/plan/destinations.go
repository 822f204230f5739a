package plan

import (
	"fmt"
	"maps"

	"github.com/ballast-lb/ballast/internal/model"
)

// destinations are the contents of vips and returns.
func (t *Tables) destinations() (map[VIPKey]uint32, map[ReturnKey]uint64) {
	vips, returns := maps.Clone(t.former), map[ReturnKey]uint64{}
	for _, p := range t.services {
		for _, key := range p.image.vips {
			vips[key] = p.numberAt(key.VIP())
			if _, functions := key.Functions(); !functions {
				vips[key.address()] = t.rejecting[key.address()]
			}
		}
		for key, id := range p.image.joins {
			vips[key] = p.number | uint32(id)<<joinShift
		}
	}
	for _, removed := range []bool{true, false} { // where a server has moved to another service, it is that one's
		for _, p := range t.services {
			for key, from := range p.image.returns {
				if from.removed == removed {
					returns[key] = ReturnValue(p.number, from.id)
				}
			}
		}
	}
	return vips, returns
}

// rejecting are the VIPs of services, all or none.
func rejecting(services []*published, rejects bool) map[VIPKey]uint32 {
	addresses := map[VIPKey]uint32{}
	for _, p := range services {
		for _, key := range p.image.vips {
			if rejects {
				addresses[key.address()] = VIPRejects
			}
		}
	}
	return addresses
}

// checkRoom refuses more destinations than half of the map: those before and after an update stand side by side.
func (t *Tables) checkRoom(vips map[VIPKey]uint32) error {
	need := len(vips)
	for _, p := range t.services {
		if n := len(p.image.joins); n > 0 {
			need += 2*len(p.image.servers) - n // of the next epoch: a rotation of keys must not fail for it
		}
	}
	if room := t.limits.Destinations() / 2; need > int(room) {
		return fmt.Errorf("no room for %d destinations (ports of services, and two of each server with mptcp), only for %d: raise the limit of services (ballast lb --help)",
			need, room)
	}
	return nil
}

// rememberVIPs makes those former that are none now, as far as there is room: live and former ones have half of the map, so that those before and
// after an update fit in it together.
func (t *Tables) rememberVIPs(before, after map[VIPKey]uint32) {
	for _, key := range sortedKeys(before, vipOrder) {
		if _, functions := key.Functions(); functions {
			continue
		}
		if _, lives := after[key.address()]; !lives && len(after) < int(t.limits.Destinations()/2) {
			t.former[key.former()], after[key.former()] = 0, 0
		}
	}
}

func (u *update) moveVIPs(before, after map[VIPKey]uint32) {
	u.makeRoomForRanges(before, after)
	for _, key := range sortedKeys(after, vipOrder) {
		if number, ok := before[key]; !ok || number != after[key] {
			u.add(SetVIP{key, after[key]})
		}
	}
	for _, key := range sortedKeys(before, vipOrder) {
		if _, ok := after[key]; !ok {
			u.add(DeleteVIP{key})
		}
	}
}

// moveReturns makes answers of new servers known before flip sends them their first packet, and leaves those of old ones
// known until no packet goes there.
func (u *update) moveReturns(before, after map[ReturnKey]uint64, flip func()) {
	for _, key := range sortedKeys(after, returnOrder) {
		if _, ok := before[key]; !ok {
			u.add(SetReturn{key, after[key]})
		}
	}
	flip()
	for _, key := range sortedKeys(after, returnOrder) {
		if value, ok := before[key]; ok && value != after[key] {
			u.add(SetReturn{key, after[key]})
		}
	}
	for _, key := range sortedKeys(before, returnOrder) {
		if _, ok := after[key]; !ok {
			u.add(DeleteReturn{key})
		}
	}
}

// makeRoomForRanges deletes ranges that are wanted no more where those before and after do not fit together, as after updates that were cut off.
func (u *update) makeRoomForRanges(before, after map[VIPKey]uint32) {
	both := map[PortKey]int{}
	for key := range after {
		if key.Last != 0 {
			both[key.List()]++
		}
	}
	for _, key := range sortedKeys(before, vipOrder) {
		if _, stays := after[key]; stays || key.Last == 0 {
			continue
		}
		if both[key.List()]++; both[key.List()] > 2*model.MaxPortRanges {
			u.add(DeleteVIP{key})
			delete(before, key)
		}
	}
}
