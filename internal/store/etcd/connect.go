// A cluster elsewhere.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// ConnectOptions say which cluster.
type ConnectOptions struct {
	Endpoints []string // like https://10.0.0.1:2379; several for several members
	// Files in PEM. Without an authority those of the host are believed; without a certificate etcd is shown none.
	CA, Certificate, Key string
	Prefix               string // of all keys; "": DefaultPrefix. Several fleets may share a cluster
	Log                  *slog.Logger
}

const (
	// A member that has vanished without a word is noticed after a few seconds: requests that are not acknowledged for keepAliveTimeout
	// end its connection (grpc-go sets TCP_USER_TIMEOUT to it), and without requests it is pinged.
	keepAlive        = 10 * time.Second
	keepAliveTimeout = 2 * time.Second

	http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" // with empty settings: RFC 9113 3.4
)

// attempts are those to reach a member: one that has returned is of use within seconds (grpc-go would wait for up to 2 minutes).
var attempts = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: 2 * time.Second,
}

// Connect returns the store of a cluster, once it answers.
func Connect(ctx context.Context, o ConnectOptions) (*Store, error) {
	if len(o.Endpoints) == 0 {
		return nil, errors.New("reach etcd: no endpoint is given: name one or more like https://10.0.0.1:2379")
	}
	var quiet atomic.Bool
	quiet.Store(true)
	config := clientv3.Config{
		Endpoints: o.Endpoints, DialTimeout: callTimeout, DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: keepAliveTimeout,
		PermitWithoutStream: true, MaxCallSendMsgSize: maxRequestBytes, Logger: zapTo(o.Log, &quiet),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(attempts)},
	}
	if o.CA != "" || o.Certificate != "" || o.Key != "" || strings.HasPrefix(o.Endpoints[0], "https") {
		info := transport.TLSInfo{TrustedCAFile: o.CA, CertFile: o.Certificate, KeyFile: o.Key}
		var err error
		if config.TLS, err = info.ClientConfig(); err != nil { // it reads certificate and key again for every connection
			return nil, fmt.Errorf("reach etcd: read certificates: %w", err)
		}
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, fmt.Errorf("reach etcd at %s: %w", strings.Join(o.Endpoints, ", "), err)
	}
	place := "etcd at " + strings.Join(o.Endpoints, ", ")
	s, err := newStore(client, o.Prefix, place, "is it running, and most of its members? see `etcdctl endpoint status --cluster`", othersLimits, o.Log, func() error { return nil })
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	err = s.call(ctx, callTimeout, func(ctx context.Context) error {
		_, err := client.Get(ctx, s.documents(), clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err
	})
	if err != nil {
		if why := diagnose(ctx, o.Endpoints, config.TLS); why != "" {
			err = fmt.Errorf("%w (%s)", err, why)
		}
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// diagnose finds what the client does not say: why members cannot be reached.
func diagnose(ctx context.Context, endpoints []string, config *tls.Config) string {
	var found []string
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	for _, endpoint := range endpoints {
		parsed, err := url.Parse(endpoint)
		if err != nil || parsed.Host == "" {
			continue
		}
		connection, err := new(net.Dialer).DialContext(ctx, "tcp", parsed.Host)
		if err == nil && config != nil {
			config = config.Clone()
			config.ServerName = parsed.Hostname()
			secured := tls.Client(connection, config)
			if err = secured.HandshakeContext(ctx); err == nil {
				_, err = io.WriteString(secured, http2Preface) // a server of TLS 1.3 refuses our certificate after the handshake
			}
			if err == nil {
				deadline, _ := ctx.Deadline()
				secured.SetReadDeadline(deadline)
				_, err = secured.Read(make([]byte, 1))
			}
		}
		if connection != nil {
			connection.Close()
		}
		if err != nil {
			found = append(found, fmt.Sprintf("%s: %v", endpoint, err))
		}
	}
	return strings.Join(found, "; ")
}
