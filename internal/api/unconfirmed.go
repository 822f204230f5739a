// What is read of a fleet is the newest, or says that it may not be.
package api

import (
	"context"
	"errors"
	"path"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Unconfirmed says why a state may not be the newest.
type Unconfirmed struct{ Why error }

func (u *Unconfirmed) Error() string { return u.Why.Error() }

// reads tells the methods that read from those that change. The answers of all that read have a field "unconfirmed".
func reads(spec connect.Spec) bool {
	method := path.Base(spec.Procedure)
	return strings.HasPrefix(method, "Get") || strings.HasPrefix(method, "List")
}

// confirmed has the newest read, or says in the answer why it may be older.
func confirmed(d Desired) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
			if !reads(request.Spec()) {
				return next(ctx, request)
			}
			_, err := d.Newest(ctx)
			var unconfirmed *Unconfirmed
			if err != nil && !errors.As(err, &unconfirmed) {
				return nil, refusal(err)
			}
			response, err := next(ctx, request)
			if err == nil && unconfirmed != nil {
				answer := response.Any().(proto.Message).ProtoReflect()
				answer.Set(answer.Descriptor().Fields().ByName("unconfirmed"), protoreflect.ValueOfString(unconfirmed.Error()))
			}
			return response, err
		}
	}
}

// OnRead has a client of the fleet API report, after each read, why what was read may not be the newest; empty: it is.
func OnRead(report func(unconfirmed string)) connect.ClientOption {
	return connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
			response, err := next(ctx, request)
			if err == nil && reads(request.Spec()) {
				report(response.Any().(interface{ GetUnconfirmed() string }).GetUnconfirmed())
			}
			return response, err
		}
	}))
}
