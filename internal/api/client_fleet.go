package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
)

// dialTimeout is how long one controller may take to answer before the next one is tried.
const dialTimeout = 2 * time.Second

// Fleet asks the fleet API of the daemon. What it refuses comes back as *connect.Error whose text is the daemon's.
func (c *Client) Fleet() ballastv1connect.FleetClient {
	return ballastv1connect.NewFleetClient(&c.http, "http://ballast", connect.WithInterceptors(inPlainWords(
		fmt.Sprintf("reach the daemon at %s: %%w: is it running, and is this its --instance?", c.path))))
}

// NewFleetClient asks the fleet API of controllers (host:port): the first that can be reached. It does not connect yet. A nil
// config is without TLS, for tests.
func NewFleetClient(controllers []string, config *tls.Config) ballastv1connect.FleetClient {
	dial := func(ctx context.Context, network, _ string) (conn net.Conn, err error) {
		for _, controller := range controllers {
			var one error
			if conn, one = dialController(ctx, network, controller, config); one == nil {
				return conn, nil
			}
			err = errors.Join(err, fmt.Errorf("%s: %w", controller, one))
		}
		return nil, err
	}
	transport := &http.Transport{DialContext: dial, DialTLSContext: dial}
	scheme := "https"
	if config == nil {
		scheme = "http"
	}
	return ballastv1connect.NewFleetClient(&http.Client{Transport: transport}, scheme+"://ballast", connect.WithInterceptors(inPlainWords(
		fmt.Sprintf("reach a controller of %s: %%w: is one running there, and is the certificate (--tls-dir, --name) one of the fleet's?",
			strings.Join(controllers, ", ")))))
}

func dialController(ctx context.Context, network, controller string, config *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var d net.Dialer
	if config == nil {
		return d.DialContext(ctx, network, controller)
	}
	return (&tls.Dialer{NetDialer: &d, Config: config}).DialContext(ctx, network, controller)
}

// inPlainWords takes the codes of the protocol off the text of errors; unreachable, a format, says what to do when nobody answers.
func inPlainWords(unreachable string) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
			response, err := next(ctx, request)
			var refused *connect.Error
			switch {
			case !errors.As(err, &refused):
				return response, err
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case connect.IsWireError(refused):
				return nil, plainError{refused, refused.Message()}
			case refused.Code() == connect.CodeUnimplemented:
				return nil, plainError{refused, "this daemon has no fleet to look at or change: ask a load balancer that runs by a file, or a controller"}
			}
			return nil, plainError{refused, fmt.Errorf(unreachable, refused.Unwrap()).Error()}
		}
	}
}

// plainError is a refusal without its code in front.
type plainError struct {
	refused *connect.Error
	text    string
}

func (e plainError) Error() string { return e.text }
func (e plainError) Unwrap() error { return e.refused }
