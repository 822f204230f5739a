// Package connectionids writes what applications need to make QUIC connection ids that name this host (affinity quic).
package connectionids

import (
	"encoding/binary"
	"fmt"
	"log/slog"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/agent/appfiles"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/pkg/quiclb"
)

// New keeps the files of services with affinity quic, for the members of a group.
func New(runDir, instance, group string, log *slog.Logger) (*appfiles.Files, error) {
	c := &appfiles.Files{Dir: api.IDDir(runDir, instance), Content: "connection ids", Of: file, Log: log}
	if err := c.AllowGroup(group); err != nil {
		return nil, fmt.Errorf("--quic-group: %w", err)
	}
	return c, nil
}

func file(keys *model.Keys, s *model.Service, server *model.Server) any {
	return fileOf(keys, s, server)
}

// fileOf is what a server needs to know of the epoch that is written. No other service of the vip has its reset key: who sends that one an id
// would learn how to end a connection of this one (RFC 9000 21.11).
func fileOf(keys *model.Keys, s *model.Service, server *model.Server) *quiclb.File {
	key := plan.ConnectionIDKey(keys.Cookie[keys.Current], s.VIP)
	id := binary.BigEndian.AppendUint64(nil, uint64(server.ID))
	derive := func(purpose string, id uint16) []byte {
		return cookie.Derive(keys.Placement, purpose+" of "+s.Name, s.VIP, id, 32)
	}
	return &quiclb.File{
		Service: s.Name, Config: plan.QUICConfigNumber(keys.Current), Algorithm: s.QUIC.Algorithm.String(), Key: key[:],
		ServerID: id[len(id)-int(s.QUIC.ServerIDLength):], NonceLength: int(s.QUIC.NonceLength),
		ResetKey: derive(cookie.ForResets, server.ID), TokenKey: derive(cookie.ForTokens, 0),
	}
}
