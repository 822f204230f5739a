// What an earlier process has published, and ranges of ports.
package server

import (
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/portranges"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// readRows learns what an earlier process has published.
func (s *Server) readRows() error {
	used := map[uint32]bool{0: true} // row 0 is the zero row
	keys := map[plan.PortKey]uint32{}
	var key plan.PortKey
	var index uint32
	entries := s.objects.ServedRows.Iterate()
	for entries.Next(&key, &index) {
		keys[key] = index
	}
	err := entries.Err()
	if err == nil {
		s.ranges, err = portranges.New(s.objects.PortRanges, s.objects.PortRangesUsed, keys, s.pointRange, s.restRanges, nil)
	}
	if err != nil {
		return fmt.Errorf("read the served services: %w", err)
	}
	published := make(map[plan.VIPKey]uint32, len(keys))
	for key, index := range keys {
		if index&portranges.Flag == 0 {
			published[plan.VIPKey{PortKey: key}] = index
		}
	}
	s.ranges.All(func(key plan.VIPKey, index uint32) { published[key] = index })
	for key, index := range published {
		row := servedRow{index: index}
		if err := s.objects.ServedServices.Lookup(index, &row.row); err != nil {
			return fmt.Errorf("read row %d of the served services: %w", index, err)
		}
		s.rows[key] = row
		used[index] = true
	}
	for i := range s.objects.ServedServices.MaxEntries() {
		if !used[i] {
			s.free = append(s.free, freeRow{index: i})
		}
	}
	return nil
}

// pointRange makes packets find a list of ranges of ports, or none (0).
func (s *Server) pointRange(key plan.PortKey, list uint32) error {
	s.rangesMoved = time.Now()
	if list == 0 {
		return s.objects.ServedRows.Delete(key)
	}
	return s.objects.ServedRows.Put(key, list)
}

// restRanges refuses to use lists again that packets may still be reading.
func (s *Server) restRanges() error {
	if time.Since(s.rangesMoved) < rowRest {
		return errTooMany
	}
	return nil
}

// rangeOf is the row of the range that serves all ports now of a key that is served no more: else the key would stand before it. That of all ports
// counts where there is no other.
func rangeOf(served map[plan.VIPKey]plan.AgentRow, key plan.VIPKey) (row plan.AgentRow, covered bool) {
	if _, wanted := served[key]; wanted || key.IsAddress() {
		return plan.AgentRow{}, false
	}
	for of, candidate := range served {
		ports := of.Ports()
		if of.Last == 0 || covered && ports == model.AllPorts || of.List() != key.List() {
			continue
		}
		if ports.Contains(key.Ports().First) && ports.Contains(key.Ports().Last) {
			row, covered = candidate, true
		}
	}
	return row, covered
}

// dropRanges gives ranges up that are served no more, where there would be no room for those that are.
func (s *Server) dropRanges(served, want map[plan.VIPKey]plan.AgentRow) error {
	count := map[plan.PortKey]int{}
	for key := range served {
		if key.Last != 0 {
			count[key.List()]++
		}
	}
	for key := range s.rows {
		if _, wanted := served[key]; wanted || key.Last == 0 {
			continue
		}
		if count[key.List()]++; count[key.List()] <= portranges.Most {
			continue
		}
		if err := s.ranges.Delete(key); err != nil {
			return err
		}
		s.free = append(s.free, freeRow{s.rows[key].index, time.Now()})
		delete(s.rows, key)
		delete(want, key)
	}
	return nil
}
