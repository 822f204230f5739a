// Package verdict is what programs count of packets: the names of verdicts, and traffic.
package verdict

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Traffic counts packets and the bytes of their IP packets as they came in.
type Traffic struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Names reads the names of an enumeration from a program's BTF, lower case, by value: there is no second list to keep.
func Names(types *btf.Spec, name string) ([]string, error) {
	var enum *btf.Enum
	if err := types.TypeByName(name, &enum); err != nil {
		return nil, fmt.Errorf("find the names of %s: %w", name, err)
	}
	names := make([]string, len(enum.Values))
	for _, v := range enum.Values {
		names[v.Value] = strings.ToLower(v.Name)
	}
	return names, nil
}
