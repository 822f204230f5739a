package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
)

// How long one controller may take to answer: before the next one is tried, and the last, whose host may be busy.
const (
	dialTimeout     = 2 * time.Second
	lastDialTimeout = 10 * time.Second
)

// Fleet asks the fleet API of the daemon. What it refuses comes back as *connect.Error whose text is the daemon's.
func (c *Client) Fleet(options ...connect.ClientOption) ballastv1connect.FleetClient {
	return ballastv1connect.NewFleetClient(&c.http, "http://ballast", c.asking(), connect.WithClientOptions(options...))
}

// Controllers asks the controller of this machine.
func (c *Client) Controllers(options ...connect.ClientOption) ballastv1connect.ControllersClient {
	return ballastv1connect.NewControllersClient(&c.http, "http://ballast", c.asking(), connect.WithClientOptions(options...))
}

// Enrolment asks the controller of this machine.
func (c *Client) Enrolment(options ...connect.ClientOption) ballastv1connect.EnrolmentClient {
	return ballastv1connect.NewEnrolmentClient(&c.http, "http://ballast", c.asking(), connect.WithClientOptions(options...))
}

func (c *Client) asking() connect.ClientOption {
	return connect.WithInterceptors(inPlainWords(c.unreached))
}

// NewFleetClient asks the fleet API of controllers (host:port): the first that can be reached and is able to answer. It does not
// connect yet. A nil config is without TLS, for tests.
func NewFleetClient(controllers []string, config *tls.Config, options ...connect.ClientOption) ballastv1connect.FleetClient {
	client, scheme, asking := toControllers(controllers, config)
	return ballastv1connect.NewFleetClient(client, scheme+"://ballast", asking, connect.WithClientOptions(options...))
}

// NewControllersClient is the same for what controllers say of themselves.
func NewControllersClient(controllers []string, config *tls.Config, options ...connect.ClientOption) ballastv1connect.ControllersClient {
	client, scheme, asking := toControllers(controllers, config)
	return ballastv1connect.NewControllersClient(client, scheme+"://ballast", asking, connect.WithClientOptions(options...))
}

// NewEnrolmentClient is the same for who invites nodes.
func NewEnrolmentClient(controllers []string, config *tls.Config, options ...connect.ClientOption) ballastv1connect.EnrolmentClient {
	client, scheme, asking := toControllers(controllers, config)
	return ballastv1connect.NewEnrolmentClient(client, scheme+"://ballast", asking, connect.WithClientOptions(options...))
}

// NewRenewalClient is the same for nodes that renew their certificates.
func NewRenewalClient(controllers []string, config *tls.Config) ballastv1connect.RenewalClient {
	client, scheme, asking := toControllers(controllers, config)
	client.Transport.(*http.Transport).DisableKeepAlives = true // it is asked once in weeks
	return ballastv1connect.NewRenewalClient(client, scheme+"://ballast", asking)
}

// NewLeavingClient asks controllers (HOST:PORT) as the node that is to leave.
func NewLeavingClient(controllers []string, config *tls.Config) ballastv1connect.LeavingClient {
	client, scheme, asking := toControllers(controllers, config)
	client.Transport.(*http.Transport).DisableKeepAlives = true // the last answer ends with the connection
	return ballastv1connect.NewLeavingClient(client, scheme+"://ballast", asking)
}

func toControllers(controllers []string, config *tls.Config) (client *http.Client, scheme string, asking connect.ClientOption) {
	d := &dialer{controllers: slices.Clone(controllers), config: config}
	transport := &http.Transport{DialContext: d.dial, DialTLSContext: d.dial}
	scheme = "https"
	if config == nil {
		scheme = "http"
	}
	another := func() {
		d.turn()
		transport.CloseIdleConnections()
	}
	return &http.Client{Transport: transport}, scheme, connect.WithInterceptors(
		inPlainWords(func(err error) string {
			return fmt.Sprintf("reach a controller of %s: %s: is one running there, and is the certificate (--tls-dir, --tls-name) one of the fleet's, and not revoked?",
				strings.Join(controllers, ", "), err)
		}), untilAble(len(controllers), another))
}

// untilAble asks another controller when one has answered that it cannot do it now, as those do that have lost the others.
func untilAble(controllers int, another func()) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, request connect.AnyRequest) (response connect.AnyResponse, err error) {
			for range controllers {
				var refused *connect.Error
				if response, err = next(ctx, request); !errors.As(err, &refused) || refused.Code() != connect.CodeUnavailable || !connect.IsWireError(refused) {
					break
				}
				another()
			}
			return response, err
		}
	}
}

// dialer connects to the first controller that can be reached.
type dialer struct {
	config      *tls.Config
	mutex       sync.Mutex
	controllers []string
}

// turn puts the first controller last.
func (d *dialer) turn() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.controllers = append(d.controllers[1:len(d.controllers):len(d.controllers)], d.controllers[0])
}

func (d *dialer) dial(ctx context.Context, network, _ string) (conn net.Conn, err error) {
	d.mutex.Lock()
	controllers := d.controllers
	d.mutex.Unlock()
	for i, controller := range controllers {
		timeout := dialTimeout
		if i == len(controllers)-1 {
			timeout = lastDialTimeout
		}
		var one error
		if conn, one = dialController(ctx, network, controller, d.config, timeout); one == nil {
			return conn, nil
		}
		if one = fmt.Errorf("%s: %w", controller, one); err != nil {
			one = fmt.Errorf("%w; %w", err, one)
		}
		err = one
	}
	return nil, &notReached{err}
}

func dialController(ctx context.Context, network, controller string, config *tls.Config, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var d net.Dialer
	if config == nil {
		return d.DialContext(ctx, network, controller)
	}
	return (&tls.Dialer{NetDialer: &d, Config: config}).DialContext(ctx, network, controller)
}

// inPlainWords takes the codes of the protocol off the text of errors; unreachable says what to do when nobody answers.
func inPlainWords(unreachable func(error) string) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
			response, err := next(ctx, request)
			var refused *connect.Error
			switch {
			case !errors.As(err, &refused):
				return response, err
			case connect.IsWireError(refused):
				return nil, plainError{refused, refused.Message()}
			case mayBeDone(request, refused):
				return nil, outcomeUnknown(refused.Unwrap(), "look with `ballast ctl history list` before you repeat it")
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case refused.Code() == connect.CodeUnimplemented:
				return nil, plainError{refused, "this daemon has no fleet to look at or change: ask a load balancer that runs by a file, or a controller"}
			}
			return nil, plainError{refused, unreachable(refused.Unwrap())}
		}
	}
}

// mayBeDone reports whether a change was sent that no answer came for.
func mayBeDone(request connect.AnyRequest, failed *connect.Error) bool {
	if reads(request.Spec()) || failed.Code() == connect.CodeUnimplemented {
		return false
	}
	if apply, ok := request.Any().(*ballastv1.ApplyRequest); ok && apply.DryRun {
		return false
	}
	return !unsent(failed)
}

// unsent reports whether an error is of a time before anything was sent.
func unsent(err error) bool {
	var unreached *notReached
	var network *net.OpError
	if errors.As(err, &network) && (network.Op == "dial" || network.Op == "remote error") { // a certificate is refused after the handshake
		return true
	}
	return errors.As(err, &unreached)
}

// notReached is why nobody was asked at all.
type notReached struct{ error }

func (n *notReached) Unwrap() error { return n.error }

// outcomeUnknown is the answer of a client that got none, with what to do; its code is that of a controller whose store did not answer.
func outcomeUnknown(err error, remedy string) error {
	return plainError{connect.NewError(connect.CodeUnknown, err), fmt.Sprintf("no answer: %v: it may or may not have been carried out: %s", err, remedy)}
}

// plainError is a refusal without its code in front.
type plainError struct {
	refused *connect.Error
	text    string
}

func (e plainError) Error() string { return e.text }
func (e plainError) Unwrap() error { return e.refused }
