package listen

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"
)

// serve answers at the loopback until the test ends; the answer to GET /metrics is big.
func serve(t *testing.T) net.Addr {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	big := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 1<<20)) })
	go func() {
		served <- ServeMetrics(ctx, slog.New(slog.DiscardHandler), listener, big, func() []string { return nil })
	}()
	t.Cleanup(func() { cancel(); <-served })
	return listener.Addr()
}

// ask sends a request from the last byte of a loopback address.
func ask(t *testing.T, at net.Addr, from byte, request string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, from)}}
	connection, err := dialer.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	connection.SetDeadline(time.Now().Add(30 * time.Second))
	fmt.Fprint(connection, request)
	return connection
}

const (
	askMetrics = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
	askHealth  = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
)

// A peer that opens connections, asks for more than it reads, and stays, keeps neither others from an answer nor a descriptor above its share.
//
// Promise: Foreign connections to `--metrics` are limited to the newest 16 of an address (IPv6: a /64) and 256 in
// all, so that `/healthz` is answered.
// Also held by TestManyThatStayKeepNobodyFromTheDaemonsHealth.
func TestAPeerThatReadsNoMetricsTakesNoMoreThanItsShare(t *testing.T) {
	at := serve(t)
	other := ask(t, at, 2, askHealth)
	var opened []net.Conn
	for range 10 * metricsPerPeer {
		opened = append(opened, ask(t, at, 1, askMetrics+askMetrics))
	}
	for _, connection := range opened[:9*metricsPerPeer] {
		if _, err := io.Copy(io.Discard, connection); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("a connection above the share is not closed")
		}
	}
	for _, connection := range opened[9*metricsPerPeer:] {
		if _, err := connection.Read(make([]byte, 16)); err != nil {
			t.Errorf("a connection of its share: %v", err)
		}
	}
	fmt.Fprint(other, askHealth)
	answers := bufio.NewReader(other)
	for range 2 {
		answer, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatalf("another peer, that was there before: %v", err)
		}
		io.Copy(io.Discard, answer.Body)
	}
	if err := ready(at, net.IPv4(127, 0, 0, 2)); err != nil {
		t.Errorf("another peer: %v", err)
	}
}

// However many stay and from wherever, whoever comes is told of the daemon's health.
func TestManyThatStayKeepNobodyFromTheDaemonsHealth(t *testing.T) {
	at := serve(t)
	for from := range byte(2 * metricsTotal / metricsPerPeer) {
		for range metricsPerPeer {
			if _, err := ask(t, at, 10+from, askHealth).Read(make([]byte, 16)); err != nil {
				t.Fatalf("peer %d: %v", from, err)
			}
		}
		if err := ready(at, net.IPv4(127, 0, 0, 1)); err != nil {
			t.Fatalf("beside %d peers: %v", from+1, err)
		}
	}
}

func TestAnIPv6NetworkIsOnePeer(t *testing.T) {
	peer := func(address string) netip.Prefix { return peerOf(netip.MustParseAddr(address)) }
	if peer("2001:db8::1") != peer("2001:db8::2:3") || peer("2001:db8::1") == peer("2001:db8:0:1::1") {
		t.Error("its addresses are of one /64")
	}
	if peer("192.0.2.1") == peer("192.0.2.2") || peer("192.0.2.1") != peer("::ffff:192.0.2.1") {
		t.Error("an IPv4 address is one")
	}
}

// ready asks from an address for the health of who listens.
func ready(at net.Addr, from net.IP) error {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}
	client := http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}, Timeout: 30 * time.Second}
	answer, err := client.Get("http://" + at.String() + "/healthz")
	if err != nil {
		return err
	}
	return answer.Body.Close()
}
