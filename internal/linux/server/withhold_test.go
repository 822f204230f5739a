package server_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// announcement is an ADD_ADDR with a port (RFC 8684 3.4.1), as Linux pads it.
func announcement(subtype byte, address netip.Addr, port uint16) []byte {
	option := append([]byte{30, 18, subtype, 3}, address.AsSlice()...)
	return append(binary.BigEndian.AppendUint16(option, port), 1, 2, 3, 4, 5, 6, 7, 8, 1, 1)
}

// What is not exactly the announcement of another epoch's port leaves as the kernel wrote it, and the checksum is right whatever the other options are.
func TestAnnouncementsOfOtherEpochsAreOverwritten(t *testing.T) {
	r := newRig(t, rigOptions{})
	service := &r.fleet.Services[0]
	service.MPTCP = model.MPTCP{FirstPort: 40000, Ports: 200}
	r.fleet.Keys.Cookie[2] = [16]byte{4, 5, 6}
	r.publish()
	port := func(epoch uint32) uint16 { return plan.JoinPorts(&r.fleet.Keys, service, epoch)(serverID) }
	const addAddr, echo, removeAddr = 0x30, 0x31, 0x40
	for name, test := range map[string]struct {
		option   []byte
		withheld bool
	}{
		"another epoch":            {announcement(addAddr, service.VIP, port(2)), true},
		"the current epoch":        {announcement(addAddr, service.VIP, port(1)), false},
		"nobody's port":            {announcement(addAddr, service.VIP, port(2)+1), false},
		"another address":          {announcement(addAddr, netip.MustParseAddr("198.51.100.11"), port(2)), false},
		"the service's port":       {announcement(addAddr, service.VIP, servicePort), false},
		"an echo":                  {announcement(echo, service.VIP, port(2)), false},
		"another option":           {announcement(removeAddr, service.VIP, port(2)), false},
		"an option of experiments": {append([]byte{253}, announcement(addAddr, service.VIP, port(2))[1:]...), false},
	} {
		for _, before := range [][]byte{nil, bytes.Join([][]byte{nop, nop, timestampOption}, nil), bytes.Join([][]byte{nop, nop, sack}, nil)} {
			for _, vip := range r.vips {
				frame, want := answerWith(t, vip, append(bytes.Clone(before), test.option...)), []byte(nil)
				if want = frame; test.withheld {
					want = answerWith(t, vip, append(bytes.Clone(before), bytes.Repeat(nop, 20)...))
				}
				if marked := r.reference(want, vip); marked != nil {
					want = marked
				}
				if got := r.egress(frame); !bytes.Equal(got, want) {
					t.Errorf("%s after %x, to %s:\n got %x\nwant %x", name, before, vip, got, want)
				}
			}
		}
	}
}
