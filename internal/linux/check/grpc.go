package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// insideTLS has requests say that they are, on a connection that has its TLS already.
type insideTLS struct {
	credentials.TransportCredentials
}

func (insideTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (i insideTLS) Clone() credentials.TransportCredentials { return i }

// checkGRPC asks grpc.health.v1 on a connection that is there already.
func checkGRPC(ctx context.Context, conn net.Conn, t Target, security credentials.TransportCredentials) error {
	var used atomic.Bool
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(security),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithDisableHealthCheck(),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errors.New("a check has one connection")
			}
			return conn, nil
		}),
	}
	if t.Health.Host != "" {
		options = append(options, grpc.WithAuthority(t.Health.Host))
	}
	client, err := grpc.NewClient("passthrough:///"+netip.AddrPortFrom(t.named(), t.checkedPort()).String(), options...)
	if err != nil {
		return fmt.Errorf("make the gRPC client: %w", err)
	}
	defer client.Close()
	answer, err := healthpb.NewHealthClient(client).Check(ctx, &healthpb.HealthCheckRequest{Service: t.Health.Service})
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("wait for the gRPC answer: timed out")
	case status.Code(err) == codes.NotFound:
		return fmt.Errorf("gRPC health: no service %q", t.Health.Service)
	case status.Code(err) == codes.Unimplemented:
		return errors.New("gRPC health: the server does not implement grpc.health.v1")
	case err != nil:
		return fmt.Errorf("gRPC health: %s: %s", status.Code(err), status.Convert(err).Message())
	case answer.Status != healthpb.HealthCheckResponse_SERVING:
		return fmt.Errorf("gRPC health: %s", answer.Status)
	}
	return nil
}
