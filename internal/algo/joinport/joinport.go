// Package joinport gives each server a port that does not show its id: a secret permutation, for MPTCP's further subflows.
//
// Departs from Cheetah VI, where subflow i goes by another permutation of AllServers: that takes the subflow's addresses beforehand.
package joinport

import (
	"encoding/binary"
	"math/bits"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/siphash"
)

// rounds of a Feistel network, as many as FF1 has (NIST SP 800-38G): numbers are small, and with four rounds their order shows.
const rounds = 10

// Permute returns where the i-th of count numbers goes, 0 <= i < count <= 65536: another one for each i, also below count.
func Permute(key cookie.Key, count, i uint32) uint32 {
	half := max(1, (bits.Len32(count-1)+1)/2)
	for {
		if i = network(key, half, i); i < count { // a permutation of up to four times as many: its cycles come back
			return i
		}
	}
}

// network permutes numbers of twice half bits.
func network(key cookie.Key, half int, i uint32) uint32 {
	mask := uint32(1)<<half - 1
	left, right := i>>half, i&mask
	for round := range rounds {
		message := binary.BigEndian.AppendUint32([]byte{byte(round)}, right)
		left, right = right, left^uint32(siphash.Sum13(key.K0, key.K1, message))&mask
	}
	return left<<half | right
}
