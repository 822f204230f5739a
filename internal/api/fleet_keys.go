package api

import (
	"context"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
)

func (f *fleetAPI) ListKeys(ctx context.Context, _ *ballastv1.ListKeysRequest) (*ballastv1.ListKeysResponse, error) {
	fleet, _, err := f.desired.Fleet(ctx)
	if err != nil {
		return nil, refusal(err)
	}
	nodes := f.desired.KeyNodes()
	answer := &ballastv1.ListKeysResponse{Epochs: fleet.Keys.Epochs(), Current: fleet.Keys.Current, Uncounted: rotation.Uncounted(&fleet),
		Blind: nodes.Blind}
	for _, epoch := range answer.Epochs {
		status := &ballastv1.KeyStatus{Epoch: epoch, Connections: nodes.Connections(epoch)}
		if epoch != fleet.Keys.Current {
			status.UseRefused, status.DropRefused = nodes.UseRefused(&fleet, epoch), nodes.DropRefused(&fleet, epoch)
		}
		answer.Keys = append(answer.Keys, status)
	}
	if age, ok := nodes.OldestReport(); ok {
		answer.OldestReport = durationpb.New(age)
	}
	return answer, nil
}

func (f *fleetAPI) AddKey(ctx context.Context, r *ballastv1.AddKeyRequest) (*ballastv1.AddKeyResponse, error) {
	key := randomKey()
	if len(r.Secret) > 0 {
		var in input
		if in.key("secret", &key, r.Secret); len(in) > 0 {
			return nil, refusal(in[0])
		}
	}
	answer := &ballastv1.AddKeyResponse{}
	done, err := f.change(ctx, r.DryRun, false, func(fleet *model.Fleet, _ []fleet.Removed) error {
		if len(fleet.Keys.Cookie) == 0 {
			if err := unsafe(f.desired.KeyNodes().Orphans(), "a key is added to those that there are"); err != nil {
				return err
			}
		}
		if answer.Epoch = r.Epoch; answer.Epoch == 0 {
			answer.Epoch = fleet.Keys.Current + 1
		}
		if _, ok := fleet.Keys.Cookie[answer.Epoch]; ok {
			return exists("key of epoch", fmt.Sprint(answer.Epoch), "drop it first, or use the next epoch")
		}
		if fleet.Keys.Cookie == nil {
			fleet.Keys.Cookie = map[uint32][16]byte{}
		}
		fleet.Keys.Cookie[answer.Epoch] = key
		return nil
	})
	if err != nil {
		return nil, err
	}
	answer.Changes = done.Changes
	if !f.desired.MakesKeys() && !r.DryRun {
		answer.Secret = key[:]
	}
	return answer, nil
}

func (f *fleetAPI) UseKey(ctx context.Context, r *ballastv1.KeyRequest) (*ballastv1.ChangeResponse, error) {
	return f.changeKeys(ctx, r, (*rotation.Nodes).UseRefused, func(keys *model.Keys) { keys.Current = r.Epoch })
}

func (f *fleetAPI) DropKey(ctx context.Context, r *ballastv1.KeyRequest) (*ballastv1.ChangeResponse, error) {
	return f.changeKeys(ctx, r, (*rotation.Nodes).DropRefused, func(keys *model.Keys) { delete(keys.Cookie, r.Epoch) })
}

// changeKeys refuses what would break connections, unless it is forced.
func (f *fleetAPI) changeKeys(ctx context.Context, r *ballastv1.KeyRequest, refused func(*rotation.Nodes, *model.Fleet, uint32) []string,
	edit func(*model.Keys)) (*ballastv1.ChangeResponse, error) {
	return f.change(ctx, r.DryRun, true, func(fleet *model.Fleet, _ []fleet.Removed) error {
		if _, ok := fleet.Keys.Cookie[r.Epoch]; !ok {
			return connect.NewError(connect.CodeNotFound, fmt.Errorf("epoch %d has no key: see `ballast ctl key list`", r.Epoch))
		}
		if !r.Force {
			if err := unsafe(refused(f.desired.KeyNodes(), fleet, r.Epoch), "see `ballast ctl key list`, or --force"); err != nil {
				return err
			}
		}
		edit(&fleet.Keys)
		return nil
	})
}

// unsafe is the refusal of what would break connections; nil where nothing speaks against it.
func unsafe(reasons []string, remedy string) error {
	if len(reasons) == 0 {
		return nil
	}
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("this would break connections: %s: %s", strings.Join(reasons, "; "), remedy))
}
