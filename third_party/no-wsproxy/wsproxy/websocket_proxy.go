// Package wsproxy stands for the proxy of the same path. etcd's server puts it before its JSON gateway, which
// controllers never switch on: here requests reach the gateway unchanged, and no WebSocket code is linked.
package wsproxy

import "net/http"

// Option is what etcd passes to WebsocketProxy.
type Option struct{}

type RequestMutatorFunc func(incoming *http.Request, outgoing *http.Request) *http.Request

type Logger interface {
	Warnln(...any)
	Debugln(...any)
}

func WithMaxRespBodyBufferSize(int) Option { return Option{} }

func WithRequestMutator(RequestMutatorFunc) Option { return Option{} }

func WithLogger(Logger) Option { return Option{} }

func WebsocketProxy(h http.Handler, _ ...Option) http.Handler { return h }
