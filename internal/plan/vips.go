// Further VIPs of a service: numbers and rows of their own, with keys of their own, for the same servers.

package plan

import "net/netip"

// doorway is the number and the row that packets to a further VIP of a service go by: the same servers, but keys of its own.
type doorway struct{ number, row uint32 }

func (p *published) numbers() map[netip.Addr]uint32 {
	numbers := map[netip.Addr]uint32{p.image.main: p.number}
	for vip, other := range p.others {
		numbers[vip] = other.number
	}
	return numbers
}

// numberAt is what packets to an address of the service go by.
func (p *published) numberAt(vip netip.Addr) uint32 {
	if other, ok := p.others[vip]; ok {
		return other.number
	}
	return p.number
}

// publishRow writes a row of a service to a place of its own, and makes number name it. before: the one that it named, 0: none.
func (u *update) publishRow(p *published, content ServiceRow, number, before uint32) (row uint32, err error) {
	to, err := u.tables.serviceRows.take(1)
	if err != nil {
		return 0, err
	}
	u.add(WriteService{to.base, p.placed(content, number, to.base)})
	u.flips = append(u.flips, PointService{number, to.base})
	if before != 0 {
		u.tables.serviceRows.give(span{before, 1})
	}
	return to.base, nil
}

// publishOthers does the same for further VIPs, and gives up those of VIPs that are gone when no packet goes by them any more.
func (u *update) publishOthers(p *published, before map[netip.Addr]ServiceRow, moved bool) error {
	for _, vip := range sortedKeys(p.others, netip.Addr.Compare) {
		if _, stays := p.image.others[vip]; !stays {
			u.retireOther(p.others[vip])
			delete(p.others, vip)
		}
	}
	if len(p.others) == 0 {
		p.others = nil
	}
	for _, vip := range sortedKeys(p.image.others, netip.Addr.Compare) {
		other, known := p.others[vip]
		if known && !moved && before[vip] == p.image.others[vip] {
			continue
		}
		if !known {
			number, err := u.tables.numbers.take(1)
			if err != nil {
				return err
			}
			other.number = number.base
		}
		row, err := u.publishRow(p, p.image.others[vip], other.number, other.row)
		if err != nil {
			return err
		}
		if p.others == nil {
			p.others = map[netip.Addr]doorway{}
		}
		p.others[vip] = doorway{other.number, row}
	}
	return nil
}

func (u *update) retireOther(other doorway) {
	u.after = append(u.after, PointService{other.number, 0})
	u.tables.numbers.give(span{other.number, 1})
	u.tables.serviceRows.give(span{other.row, 1})
}
