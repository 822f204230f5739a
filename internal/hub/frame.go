package hub

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// frame is an encoded ToNode in parts. Most of its bytes are shared by the frames of many peers: a service is encoded once,
// however many load balancers are sent it.
type frame struct {
	parts [][]byte
}

func (f *frame) size() (bytes int) {
	for _, part := range f.parts {
		bytes += len(part)
	}
	return bytes
}

// Numbers of fields in ballast.proto.
const (
	toNodeState   = 2
	stateServices = 4
)

// serviceField encodes a service as one element of State.services.
func serviceField(state *ballastv1.ServiceState) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, stateServices, protowire.BytesType), mustMarshal(state))
}

// stateFrame puts encoded services and the other fields of a State together.
func stateFrame(rest *ballastv1.State, services [][]byte) *frame {
	head := mustMarshal(rest)
	size := len(head)
	for _, service := range services {
		size += len(service)
	}
	envelope := protowire.AppendVarint(protowire.AppendTag(nil, toNodeState, protowire.BytesType), uint64(size))
	return &frame{append([][]byte{append(envelope, head...)}, services...)}
}

func messageFrame(message *ballastv1.ToNode) *frame { return &frame{[][]byte{mustMarshal(message)}} }

// mustMarshal encodes a message that we made: one that cannot be encoded is a mistake of the program.
func mustMarshal(message proto.Message) []byte {
	encoded, err := proto.Marshal(message)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", message, err))
	}
	return encoded
}

// codec writes frames as they are.
type codec struct{}

func (codec) Name() string { return "proto" }

func (c codec) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

// MarshalAppend copies, as the stream reuses the buffer that it appends to.
func (codec) MarshalAppend(to []byte, message any) ([]byte, error) {
	switch m := message.(type) {
	case *frame:
		for _, part := range m.parts {
			to = append(to, part...)
		}
		return to, nil
	case proto.Message:
		return proto.MarshalOptions{}.MarshalAppend(to, m)
	}
	return nil, fmt.Errorf("encode %T: it is no message", message)
}

func (codec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("decode %T: it is no message", message)
	}
	return proto.Unmarshal(data, m)
}
