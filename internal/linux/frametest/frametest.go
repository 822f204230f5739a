// Package frametest has frames that nobody sent come to a program, for tests of packages that do not load programs themselves.
package frametest

import (
	"testing"

	"github.com/cilium/ebpf"
)

// Actions of XDP.
const (
	Drop = 1
	Pass = 2
	TX   = 3
)

// Run returns the program's action, and the frame as it has become.
func Run(t testing.TB, program *ebpf.Program, frame []byte) (action uint32, out []byte) {
	t.Helper()
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	action, err := program.Run(&options)
	if err != nil {
		t.Fatal(err)
	}
	return action, options.DataOut
}
