// Datagrams that must come back: the client's exchange and the server that echoes.
package traffic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"
)

// nameField is the length of the server's name in front of each echo.
const nameField = 16

// exchangeDatagrams sends the flow's datagrams from one socket and waits for each echo. A datagram
// that does not come back within the plan's Stall breaks the exchange: the lab's links lose nothing
// unless a scenario makes them, and then flows send again.
func (r *runner) exchangeDatagrams(ctx context.Context, flow *Flow, source netip.Addr) Connection {
	result := Connection{Flow: flow.Name, Started: time.Now(), Source: source.String(), Class: Completed}
	dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: source.AsSlice()}}
	socket, err := dialer.DialContext(ctx, "udp", flow.Target)
	if err != nil {
		result.Class, result.Detail = OtherError, err.Error()
		return result
	}
	defer socket.Close()
	result.Source = socket.LocalAddr().String()
	err = r.requests(ctx, flow, &result, func(request Request) error { return r.datagram(socket, flow, request, &result) })
	if err != nil {
		result.Class, result.Detail = classify(err, true), err.Error()
	}
	return result
}

func (r *runner) datagram(socket net.Conn, flow *Flow, request Request, result *Connection) error {
	sent := make([]byte, request.Bytes)
	for i := range sent {
		sent[i] = byte(i * (result.Requests + 7))
	}
	echo := make([]byte, nameField+request.Bytes+1)
	for late := time.Now().Add(r.plan.Stall); ; {
		again := late
		if flow.Again > 0 {
			again = time.Now().Add(flow.Again)
		}
		if err := socket.SetDeadline(again); err != nil {
			return err
		}
		if _, err := socket.Write(sent); err != nil {
			return err
		}
		n, err := socket.Read(echo)
		if errors.Is(err, os.ErrDeadlineExceeded) && again.Before(late) && !time.Now().After(late) {
			continue
		}
		if err != nil {
			return err
		}
		r.received(n)
		result.Bytes += int64(n)
		if n < nameField || !bytes.Equal(echo[nameField:n], sent) {
			if flow.Again > 0 { // of the request before, which was sent twice
				continue
			}
			return &brokenError{WrongAnswer, fmt.Sprintf("echo of %d bytes differs from the %d sent", n, len(sent))}
		}
		server := string(bytes.TrimRight(echo[:nameField], "\x00"))
		if result.Server == "" {
			result.Server = server
			r.answeredBy(server)
		}
		if server != result.Server {
			return &brokenError{Moved, fmt.Sprintf("%s answered a flow of %s", server, result.Server)}
		}
		return nil
	}
}

// EchoPort in the place of a server's name stands for the port that a datagram came from.
const EchoPort = "-"

// Echo answers each datagram at address with the server's name followed by the datagram. It listens
// on the VIP itself, so that answers come from there.
func Echo(ctx context.Context, address, server string) error {
	var config net.ListenConfig
	socket, err := config.ListenPacket(ctx, "udp", address)
	if err != nil {
		return fmt.Errorf("listen for datagrams on %s: %w", address, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	defer stop()
	buffer := make([]byte, nameField+65536)
	copy(buffer[:nameField], server)
	for {
		n, from, err := socket.ReadFrom(buffer[nameField:])
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive a datagram on %s: %w", address, err)
		}
		if server == EchoPort {
			clear(buffer[:nameField])
			copy(buffer[:nameField], strconv.Itoa(from.(*net.UDPAddr).Port))
		}
		// A lost answer shows at the client as a stall.
		_, _ = socket.WriteTo(buffer[:nameField+n], from)
	}
}
