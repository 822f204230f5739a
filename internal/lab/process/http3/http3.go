// Package http3 is an HTTP/3 server of a lab, on quic-go. It has the paths of the lab's nginx, but for those of files.
package http3

import (
	"context"
	"crypto/tls"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/ballast-lb/ballast/internal/lab/process/identity"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/pkg/quiclb"
	"github.com/ballast-lb/ballast/pkg/quiclb/quicgo"
)

// Options describe a server, and how clients find it again.
type Options struct {
	Address string `json:"address"` // host:port to serve on
	Server  string `json:"server"`  // name
	IDs     string `json:"ids"`     // the agent's file of the service; empty: connection ids name nobody
	Retry   bool   `json:"retry"`   // every client has to come back with a token

	Certificate string `json:"certificate"` // a file, without .crt and .key; empty: one of its own

	Tickets []byte `json:"tickets"` // 32 bytes: the key of TLS session tickets, which servers share; empty: a key of its own
}

// Implementation constants.
const (
	idle  = 30 * time.Second
	piece = 8 << 10 // of an answer at a limited rate
)

// page makes a browser send requests with pauses, and then show the answers. It has loaded when that is done.
//
//go:embed page.html
var page string

// Run serves until ctx ends.
func Run(ctx context.Context, options Options) error {
	return Serve(ctx, options, routes(options.Server))
}

// Serve answers by a handler until ctx ends.
func Serve(ctx context.Context, options Options, handler http.Handler) error {
	ids, err := openIDs(ctx, options.IDs)
	if err != nil {
		return err
	}
	var config net.ListenConfig
	socket, err := config.ListenPacket(ctx, "udp", options.Address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", options.Address, err)
	}
	defer socket.Close()
	transport := &quic.Transport{Conn: socket}
	if ids != nil {
		transport = quicgo.Transport(socket, ids)
	}
	transport.VerifySourceAddress = func(net.Addr) bool { return options.Retry }
	certificate, err := identity.SelfSigned()
	if options.Certificate != "" {
		certificate, err = tls.LoadX509KeyPair(options.Certificate+".crt", options.Certificate+".key")
	}
	if err != nil {
		return err
	}
	security := &tls.Config{Certificates: []tls.Certificate{certificate}}
	if len(options.Tickets) != 0 {
		security.SetSessionTicketKeys([][32]byte{[32]byte(options.Tickets)})
	}
	listener, err := transport.ListenEarly(http3.ConfigureTLSConfig(security),
		&quic.Config{MaxIdleTimeout: idle, Allow0RTT: true})
	if err != nil {
		return fmt.Errorf("serve on %s: %w", options.Address, err)
	}
	server := http3.Server{Handler: handler}
	defer context.AfterFunc(ctx, func() { _ = server.Close(); _ = listener.Close() })()
	if err := server.ServeListener(listener); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, quic.ErrServerClosed) && ctx.Err() == nil {
		return fmt.Errorf("serve on %s: %w", options.Address, err)
	}
	return nil
}

// openIDs is nil if none is wanted.
func openIDs(ctx context.Context, path string) (*quiclb.Generator, error) {
	if path == "" {
		return nil, nil
	}
	return identity.Await(ctx, quiclb.Open, path)
}

func routes(name string) http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /page", func(out http.ResponseWriter, _ *http.Request) { fmt.Fprint(out, page) })
	routes.HandleFunc("GET /name", func(out http.ResponseWriter, _ *http.Request) { fmt.Fprintln(out, name) })
	routes.HandleFunc("GET /blob", func(out http.ResponseWriter, request *http.Request) { send(out, request, 0) })
	routes.HandleFunc("GET /slow/{rate}/blob", func(out http.ResponseWriter, request *http.Request) {
		rate, err := strconv.Atoi(request.PathValue("rate"))
		if err != nil || rate <= 0 {
			http.Error(out, "give a rate in bytes per second", http.StatusBadRequest)
			return
		}
		send(out, request, rate)
	})
	routes.HandleFunc("PUT /upload/", func(out http.ResponseWriter, request *http.Request) {
		if _, err := io.Copy(io.Discard, request.Body); err == nil {
			out.WriteHeader(http.StatusNoContent)
		}
	})
	return http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		out.Header().Set(traffic.ServerHeader, name)
		routes.ServeHTTP(out, request)
	})
}

// send answers with as many bytes as the request's Range wants, at a rate in bytes per second; 0: at once.
func send(out http.ResponseWriter, request *http.Request, rate int) {
	last, err := strconv.ParseInt(strings.TrimPrefix(request.Header.Get("Range"), "bytes=0-"), 10, 64)
	if err != nil {
		http.Error(out, "give a Range from 0", http.StatusBadRequest)
		return
	}
	flusher, begin := http.NewResponseController(out), time.Now()
	for sent, left := int64(0), last+1; left > 0; {
		some := min(left, piece)
		if _, err := out.Write(make([]byte, some)); err != nil {
			return
		}
		sent, left = sent+some, left-some
		if rate == 0 || left == 0 {
			continue
		}
		_ = flusher.Flush()
		select {
		case <-time.After(time.Until(begin.Add(time.Duration(sent) * time.Second / time.Duration(rate)))):
		case <-request.Context().Done():
			return
		}
	}
}
