// A cluster elsewhere.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
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
	config := clientv3.Config{
		Endpoints: o.Endpoints, DialTimeout: callTimeout, DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: keepAliveTimeout,
		PermitWithoutStream: true, MaxCallSendMsgSize: maxRequestBytes, Logger: quietTo(o.Log),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(attempts)},
	}
	if o.CA != "" || o.Certificate != "" || o.Key != "" || strings.HasPrefix(o.Endpoints[0], "https") {
		info := transport.TLSInfo{TrustedCAFile: o.CA, CertFile: o.Certificate, KeyFile: o.Key}
		tls, err := info.ClientConfig() // reads certificate and key again for every connection
		if err != nil {
			return nil, fmt.Errorf("reach etcd: read certificates: %w", err)
		}
		config.TLS = tls
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, fmt.Errorf("reach etcd at %s: %w", strings.Join(o.Endpoints, ", "), err)
	}
	place := "etcd at " + strings.Join(o.Endpoints, ", ")
	s, err := newStore(client, o.Prefix, place, "is it running, and most of its members? see `etcdctl endpoint status --cluster`", o.Log, func() error { return nil })
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	err = s.call(ctx, callTimeout, func(ctx context.Context) error {
		_, err := client.Get(ctx, s.documents(), clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}
