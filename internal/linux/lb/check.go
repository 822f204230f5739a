// Packets of health checks that the program sends: a server gets them as it gets clients' packets.
package lb

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const (
	xdpLiveFrames = 1 << 1 // BPF_F_TEST_XDP_LIVE_FRAMES: the kernel transmits what the program redirects (Linux 5.18)

	macsLength   = 12
	headerLength = 14 // Ethernet
)

// SendCheck sends an IP packet to a server of the service with that number: as the service forwards or, direct, addressed to the server itself.
// It goes out in the calling thread's network namespace, by what a redirect in native mode does. An error says that it was not sent; that a
// driver refused it, or that there is no such server, is not known here.
func (lb *LB) SendCheck(service uint32, id uint16, direct bool, packet []byte) error {
	_, err := lb.objects.program("lb_check").Run(&ebpf.RunOptions{Data: checkFrame(service, id, direct, packet), Flags: xdpLiveFrames, Repeat: 1})
	if err != nil {
		return fmt.Errorf("have XDP send a packet of a health check: %w", err)
	}
	return nil
}

// TrySendCheck tells whether the kernel lets SendCheck send packets. It sends none.
func (lb *LB) TrySendCheck() error { return lb.SendCheck(0, 0, false, make([]byte, 46)) }

// checkFrame puts struct check_destination in front of a packet.
func checkFrame(service uint32, id uint16, direct bool, packet []byte) []byte {
	frame := make([]byte, headerLength, headerLength+len(packet))
	binary.LittleEndian.PutUint32(frame, service)
	binary.LittleEndian.PutUint16(frame[4:], id)
	if direct {
		frame[6] = 1
	}
	protocol := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		protocol = unix.ETH_P_IPV6
	}
	binary.BigEndian.PutUint16(frame[macsLength:], protocol)
	return append(frame, packet...)
}
