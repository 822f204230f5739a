// Package relay stands between a load balancer and its controller and loses a share of the updates of weights: TCP loses none, so the
// wire alone cannot.
package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Options name the two sides of a relay. It shows each the other's certificate.
type Options struct {
	Listen       string `json:"listen"` // address:port for the load balancer
	Controller   string `json:"controller"`
	ControlledBy string `json:"controlled_by"` // name of the controller
	Node         string `json:"node"`          // name of the load balancer
	TLSDir       string `json:"tls_dir"`
}

type relay struct {
	controller ballastv1connect.ControlClient
	loss       atomic.Uint64 // bits of a float64: share of the updates
}

// Run relays until ctx or in ends. Each line of in is the share that is lost from then on.
func Run(ctx context.Context, in io.Reader, options Options) error {
	node, err := pki.Load(options.TLSDir, options.Node, pki.LB)
	if err != nil {
		return err
	}
	controller, err := pki.Load(options.TLSDir, options.ControlledBy, pki.Controller)
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: node.Client(), ForceAttemptHTTP2: true}
	r := &relay{controller: ballastv1connect.NewControlClient(&http.Client{Transport: transport}, "https://"+options.Controller, connect.WithGRPC())}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() { cancel(r.obey(in)) }()
	routes := http.NewServeMux()
	routes.Handle(ballastv1connect.NewControlHandler(r))
	server := &http.Server{Addr: options.Listen, Handler: routes, TLSConfig: controller.Server(), ReadHeaderTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ListenAndServeTLS("", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("relay at %s: %w", options.Listen, err)
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// obey reads shares; it returns why there are no more.
func (r *relay) obey(in io.Reader) error {
	for lines := bufio.NewReader(in); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		share, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
		if err != nil {
			return fmt.Errorf("read the share of weights to lose: %w", err)
		}
		r.loss.Store(math.Float64bits(share))
	}
}

// Join relays one stream. The controller's end of it ends the load balancer's, and the other way round.
func (r *relay) Join(ctx context.Context, node *connect.BidiStream[ballastv1.FromNode, ballastv1.ToNode]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	controller, err := r.controller.Join(ctx)
	if err != nil {
		return err
	}
	defer controller.CloseResponse()
	go func() {
		defer cancel()
		defer controller.CloseRequest()
		for {
			message, err := node.Receive()
			if err != nil || controller.Send(message) != nil {
				return
			}
		}
	}()
	for {
		message, err := controller.Receive()
		if err != nil {
			return err
		}
		if message.GetWeights() != nil && rand.Float64() < math.Float64frombits(r.loss.Load()) {
			continue
		}
		if err := node.Send(message); err != nil {
			return err
		}
	}
}
