package api

import (
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// serverSourceToProto returns nil for a service whose servers are listed.
func serverSourceToProto(o *model.ServerSource) *ballastv1.ServerSource {
	if o.IsZero() {
		return nil
	}
	return &ballastv1.ServerSource{From: o.From.String(), Name: proto.String(o.Name), Record: o.Record.String(), Family: o.Family.String(),
		Resolver: proto.String(o.Resolver), Transport: o.Transport.String(),
		Service: proto.String(o.Service), Agent: proto.String(o.Agent), Datacenter: proto.String(o.Datacenter), Tag: proto.String(o.Tag), Path: proto.String(o.Path)}
}

func (in *input) serverSource(path string, o *model.ServerSource, m *ballastv1.ServerSource) {
	if m == nil {
		return
	}
	choose(in, path, "from", &o.From, m.From)
	takeText(&o.Name, m.Name)
	choose(in, path, "record", &o.Record, m.Record)
	choose(in, path, "family", &o.Family, m.Family)
	takeText(&o.Resolver, m.Resolver)
	choose(in, path, "transport", &o.Transport, m.Transport)
	takeText(&o.Service, m.Service)
	takeText(&o.Agent, m.Agent)
	takeText(&o.Datacenter, m.Datacenter)
	takeText(&o.Tag, m.Tag)
	takeText(&o.Path, m.Path)
}

// takeText sets a text to what a message has, which may be empty, if it has one.
func takeText(text *string, value *string) {
	if value != nil {
		*text = *value
	}
}
