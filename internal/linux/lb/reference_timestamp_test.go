// Reference of bpf/wire/timestamp.h: where the timestamp option is.
package lb

import (
	"encoding/binary"
)

type optionSearch int

const (
	optionAbsent optionSearch = iota
	optionFound
	optionMalformed
)

// findTimestamp walks the options. TCP-AO hides what follows it.
func findTimestamp(options []byte) (search optionSearch, value, echo uint32) {
	for i := 0; i < len(options); {
		switch kind := options[i]; {
		case kind == 0:
			return optionAbsent, 0, 0
		case kind == 1:
			i++
		case i+1 >= len(options) || options[i+1] < 2 || i+int(options[i+1]) > len(options):
			return optionMalformed, 0, 0
		case kind == 29:
			return optionAbsent, 0, 0
		case kind == 8 && options[i+1] != 10:
			return optionMalformed, 0, 0
		case kind == 8:
			return optionFound, binary.BigEndian.Uint32(options[i+2:]), binary.BigEndian.Uint32(options[i+6:])
		default:
			i += int(options[i+1])
		}
	}
	return optionAbsent, 0, 0
}
