// Package slowlink delays every frame between two interfaces of its namespace, in both directions, and loses, doubles and swaps segments of ClientHellos.
//
// A BPF program could delay by skb->tstamp, but only above a qdisc that honours it (fq), which a kernel
// may lack. This relay needs packet sockets only. It keeps the order of frames and loses none of them
// unless its sockets overflow.
package slowlink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Implementation constants.
const (
	frameBytesMax     = 65536
	framesQueuedMax   = 65536
	socketBufferBytes = 8 << 20
	receivePatience   = 200 * time.Millisecond // how long a receiver may overlook the end
)

// Options are two interfaces and what happens to frames between them.
type Options struct {
	Near   string        `json:"near"` // the clients' side
	Far    string        `json:"far"`
	Delay  time.Duration `json:"delay"`
	Faults []Fault       `json:"faults,omitempty"` // of what comes from clients
}

type delayedFrame struct {
	due     time.Time
	content []byte
}

// Run relays frames until ctx ends. With faults it then writes to out what it has seen, by address.
func Run(ctx context.Context, out io.Writer, o Options) error {
	near, err := open(o.Near)
	if err != nil {
		return err
	}
	defer unix.Close(near)
	far, err := open(o.Far)
	if err != nil {
		return err
	}
	defer unix.Close(far)
	clientHellos := newClientHellos(o.Faults)
	all := func(frame []byte) [][]byte { return [][]byte{frame} }
	group, ctx := errgroup.WithContext(ctx)
	for _, direction := range []struct {
		from, to int
		pass     func(frame []byte) [][]byte
	}{{near, far, clientHellos.pass}, {far, near, all}} {
		queue := make(chan delayedFrame, framesQueuedMax)
		group.Go(func() error {
			defer close(queue)
			return receive(ctx, direction.from, o.Delay, direction.pass, queue)
		})
		group.Go(func() error { return send(direction.to, queue) })
	}
	if err := group.Wait(); err != nil || len(o.Faults) == 0 {
		return err
	}
	return json.NewEncoder(out).Encode(clientHellos.seen)
}

// open makes a packet socket that sees what arrives at an interface, and not what is sent by it.
func open(name string) (int, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return -1, fmt.Errorf("find interface %s: %w", name, err)
	}
	const everything = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open packet socket: %w", err)
	}
	patience := unix.NsecToTimeval(receivePatience.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptInt(socket, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBufferBytes),
		unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience),
		unix.SetsockoptPacketMreq(socket, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&unix.PacketMreq{Ifindex: int32(link.Index), Type: unix.PACKET_MR_PROMISC}),
		unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: link.Index}))
	if err != nil {
		return -1, errors.Join(fmt.Errorf("listen for frames on %s: %w", name, err), unix.Close(socket))
	}
	return socket, nil
}

func receive(ctx context.Context, socket int, delay time.Duration, pass func(frame []byte) [][]byte, queue chan<- delayedFrame) error {
	buffer := make([]byte, frameBytesMax)
	for ctx.Err() == nil {
		length, _, err := unix.Recvfrom(socket, buffer, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("receive a frame: %w", err)
		}
		due := time.Now().Add(delay)
		for _, frame := range pass(append([]byte(nil), buffer[:length]...)) {
			queue <- delayedFrame{due, frame}
		}
	}
	return nil
}

// send sends each frame when it is due. A frame that the interface refuses (its peer is down) is lost,
// as on any link.
func send(socket int, queue <-chan delayedFrame) error {
	for frame := range queue {
		time.Sleep(time.Until(frame.due))
		_, _ = unix.Write(socket, frame.content)
	}
	return nil
}
