package bench

import (
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
)

// optionSubjects are packets of one connection that differ by where the timestamp is among the options: the first number is the header's length in words,
// as SHELL's figure 5 has it. What is not the timestamp is SACK blocks, or NOPs.
func (r *rig) optionSubjects() []subject {
	carrying := carryingCell(&r.fleet, rrVIP, segmentACK)
	timestamp := slices.Concat(ackOptions[2:8], carrying.FrameOf(0, 0)[wrapper.EchoAt:][:4])
	aligned := slices.Concat([]byte{1, 1}, timestamp)
	sack := func(blocks int) []byte {
		return slices.Concat([]byte{1, 1, 5, byte(2 + 8*blocks)}, make([]byte, 8*blocks))
	}
	var all []subject
	add := func(place string, options ...[]byte) {
		whole := slices.Concat(options...)
		all = append(all, subject{name: fmt.Sprintf("options-%d-%s", 5+len(whole)/4, place), program: r.lb.Program(), lb: r.lb, only: 1,
			verdict: "forwarded_by_cookie", place: r.places[rrVIP.String()], check: checkCookie,
			cell: wrapper.Cell{Frame: frame(rrVIP, segmentACK, whole), Growth: outerLength, IDs: servers}})
	}
	add("first", aligned)
	add("shifted", timestamp, []byte{1, 1})
	for blocks := 1; blocks <= 3; blocks++ {
		add("first", aligned, sack(blocks))
		add("behind-sack", sack(blocks), aligned)
	}
	add("behind-nops", slices.Repeat([]byte{1}, 28), aligned)
	return all
}
