// Package session is a lab's TLS servers, whose session tickets name them.
package session

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/ballast-lb/ballast/internal/lab/process/identity"
	"github.com/ballast-lb/ballast/pkg/sessionticket"
)

// Server describes a server.
type Server struct {
	Address string `json:"address"` // host:port to serve on
	Name    string `json:"name"`    // what it answers each line with
	Tickets string `json:"tickets"` // the agent's file of the service
	Retries bool   `json:"retries"` // it asks each client of TLS 1.3 for another key share (HelloRetryRequest, RFC 8446 4.1.4)
}

// Serve answers each line by its name until ctx ends.
func Serve(ctx context.Context, o Server) error {
	certificate, err := identity.SelfSigned()
	if err != nil {
		return err
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}}
	if o.Retries {
		config.CurvePreferences = []tls.CurveID{tls.CurveP256} // Go's clients send others
	}
	if o.Tickets != "" {
		tickets, err := identity.Await(ctx, sessionticket.Open, o.Tickets)
		if err != nil {
			return err
		}
		tickets.Configure(config)
	}
	var listen net.ListenConfig
	listen.SetMultipathTCP(false) // as Go's listeners have it: the kernel takes no connection over for them
	listener, err := listen.Listen(ctx, "tcp", o.Address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", o.Address, err)
	}
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept on %s: %w", o.Address, err)
		}
		go sayName(tls.Server(conn, config), o.Name)
	}
}

func sayName(conn net.Conn, name string) {
	defer conn.Close()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if _, err := fmt.Fprintln(conn, name); err != nil {
			return
		}
	}
}
