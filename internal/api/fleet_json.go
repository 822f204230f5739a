package api

import (
	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// strictJSON reads and writes messages as JSON in the words of the configuration file (cookie_bits, not cookieBits, though that is
// read too), and refuses fields that it does not know: a typing error must not pass for a default.
type strictJSON string

func (s strictJSON) Name() string { return string(s) }

func (strictJSON) Marshal(message any) ([]byte, error) {
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(message.(proto.Message))
}

func (strictJSON) Unmarshal(text []byte, message any) error {
	return protojson.Unmarshal(text, message.(proto.Message))
}

// WithStrictJSON has a handler read JSON strictly: it takes the place of the JSON of connect, by both names that it has.
func WithStrictJSON() connect.HandlerOption {
	return connect.WithHandlerOptions(connect.WithCodec(strictJSON("json")), connect.WithCodec(strictJSON("json; charset=utf-8")))
}
