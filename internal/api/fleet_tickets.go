package api

import (
	"context"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

func (f *fleetAPI) ListTicketKeys(ctx context.Context, _ *ballastv1.ListTicketKeysRequest) (*ballastv1.ListTicketKeysResponse, error) {
	answer, err := f.desired.TicketKeys(ctx)
	return answer, refusal(err)
}

func (f *fleetAPI) UseTicketKey(ctx context.Context, r *ballastv1.KeyRequest) (*ballastv1.ChangeResponse, error) {
	changes, revision, err := f.desired.UseTicketKey(ctx, r.DryRun, r.Epoch, r.Force)
	return &ballastv1.ChangeResponse{Changes: changes, Revision: revision}, refusal(err)
}

func (f *fleetAPI) RevokeTicketKeys(ctx context.Context, r *ballastv1.RevokeTicketKeysRequest) (*ballastv1.ChangeResponse, error) {
	warnings := []string{"all TLS sessions of services with `session: tls` begin again"}
	if !r.Force && !r.DryRun {
		return nil, Dangerous(warnings)
	}
	changes, revision, err := f.desired.RevokeTicketKeys(ctx, r.DryRun, r.Newest)
	return &ballastv1.ChangeResponse{Changes: changes, Revision: revision, Warnings: warnings}, refusal(err)
}

// Unready is the refusal to have tickets made by a key that servers could not read them by.
func Unready(reasons []string) error {
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("sessions would begin again: %s: see `ballast ctl ticket list`, or --force", strings.Join(reasons, "; ")))
}
