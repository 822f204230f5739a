package listen

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"
)

// A peer that opens connections, asks for more than it reads, and stays, keeps neither others from an answer nor a descriptor above its share.
func TestAPeerThatReadsNoMetricsTakesNoMoreThanItsShare(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	big := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 1<<20)) })
	go func() { served <- ServeMetrics(ctx, listener, big, func() []string { return nil }) }()

	var opened []net.Conn
	for range 10 * metricsPerPeer {
		connection, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		fmt.Fprint(connection, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
		opened = append(opened, connection)
	}
	refused := 0
	for _, connection := range opened {
		connection.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := bufio.NewReaderSize(connection, 16).ReadByte(); err != nil {
			refused++
		}
	}
	if want := 9 * metricsPerPeer; refused != want {
		t.Errorf("%d of %d connections refused, want %d", refused, len(opened), want)
	}
	if err := ready(listener.Addr(), net.IPv4(127, 0, 0, 2)); err != nil {
		t.Errorf("another peer: %v", err)
	}
	for _, connection := range opened {
		connection.Close()
	}
	for deadline := time.Now().Add(30 * time.Second); ready(listener.Addr(), net.IPv4(127, 0, 0, 1)) != nil; {
		if time.Now().After(deadline) {
			t.Fatal("places of connections that are closed are not given back")
		}
	}
	cancel()
	<-served
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
