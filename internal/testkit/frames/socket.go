// Package frames sends single frames that no TCP would send, and sees what passes a link.
package frames

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Implementation constants.
const (
	frameBytesMax     = 65536
	socketBufferBytes = 8 << 20
	receivePatience   = 50 * time.Millisecond
)

// A Socket sends and receives frames on one interface. It stays in the namespace that it was opened in.
type Socket struct {
	fd     int
	buffer []byte
}

// Open makes a socket on an interface of the calling thread's namespace. It sees what comes in and what goes out.
func Open(name string) (*Socket, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", name, err)
	}
	const everything = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	patience := unix.NsecToTimeval(receivePatience.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBufferBytes),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: link.Index}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open frames of %s: %w", name, err), unix.Close(fd))
	}
	return &Socket{fd: fd, buffer: make([]byte, frameBytesMax)}, nil
}

// Send sends one frame. A frame that finds the interface's queue full is lost, as on any link.
func (s *Socket) Send(frame []byte) error {
	if _, err := unix.Write(s.fd, frame); err != nil && !errors.Is(err, unix.ENOBUFS) {
		return fmt.Errorf("send a frame: %w", err)
	}
	return nil
}

// Receive waits a moment for a frame; nil means that none came. It is valid until the next call.
func (s *Socket) Receive() ([]byte, error) {
	length, _, err := unix.Recvfrom(s.fd, s.buffer, 0)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("receive a frame: %w", err)
	}
	return s.buffer[:length], nil
}

// Close closes the socket; nobody may be receiving.
func (s *Socket) Close() error { return unix.Close(s.fd) }
