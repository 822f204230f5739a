// Package file reads the servers of a service from a file: a list as it would be in the fleet's.
package file

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/discovery/below"
	"github.com/ballast-lb/ballast/internal/machine/discovery"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	settle = 100 * time.Millisecond // how long a file must stay as it is before it counts: editors write in several steps
	most   = 20                     // times that it is read for that
)

// Source is a file.
type Source struct {
	dir, path string
	wait      func(context.Context) // for settle
}

// New returns what reads a file; dir is the controller's folder of sources.
func New(of model.ServerSource, dir string) *Source {
	return &Source{filepath.Join(dir, "files"), of.Path, func(ctx context.Context) {
		select {
		case <-time.After(settle):
		case <-ctx.Done():
		}
	}}
}

// Ask reads the file, whoever has put it there how: by writing, renaming, or another link.
func (s *Source) Ask(ctx context.Context) (answer discovery.Answer, wait time.Duration) {
	text, err := s.settled(ctx)
	if err != nil {
		return discovery.Answer{Err: err}, 0
	}
	servers, wrong := config.ParseServers(filepath.Join(s.dir, s.path), text)
	if len(wrong) > 0 {
		var list []string
		for _, err := range wrong {
			list = append(list, err.Error())
		}
		return discovery.Answer{Err: errors.New(model.Some(list))}, 0
	}
	for i := range servers {
		one := &servers[i]
		found := discovery.Found{Name: one.Name, Address: one.Address, Port: one.Port, Weight: one.Weight, Draining: one.State != model.StateActive}
		if one.Weight == model.WeightUnset {
			found.Weight = 1
		}
		answer.Servers = append(answer.Servers, found)
	}
	return answer, 0
}

// settled returns what is in the file as soon as two readings are the same.
func (s *Source) settled(ctx context.Context) (text []byte, err error) {
	text, err = below.Read(s.dir, s.path)
	for range most {
		if err != nil {
			return nil, err
		}
		before := text
		if s.wait(ctx); ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if text, err = below.Read(s.dir, s.path); err == nil && bytes.Equal(before, text) {
			return text, nil
		}
	}
	return nil, errors.New("the file changes all the time: write another one beside it, and rename that")
}
