// Servers, as worlds number them, and their ids in shares and tables, where 0 means none: server s has the id s+1.
package dispatch

import "github.com/ballast-lb/ballast/internal/model"

// Everybody returns servers 0 to n-1.
func Everybody(n int) []uint32 {
	all := make([]uint32, n)
	for i := range all {
		all[i] = uint32(i)
	}
	return all
}

// Alike returns the shares of servers that weigh the same.
func Alike(servers []uint32) []model.Share {
	shares := make([]model.Share, len(servers))
	for i, server := range servers {
		shares[i] = model.Share{ID: uint16(server + 1), Weight: 1}
	}
	return shares
}

// Servers returns those that ids name.
func Servers(ids []uint16) []uint32 { return servers(make([]uint32, 0, len(ids)), ids) }

// servers appends those that ids name.
func servers(list []uint32, ids []uint16) []uint32 {
	for _, id := range ids {
		list = append(list, uint32(id)-1)
	}
	return list
}
