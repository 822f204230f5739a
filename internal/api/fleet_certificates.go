package api

import (
	"context"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

func (f *fleetAPI) RevokeCertificate(ctx context.Context, r *ballastv1.RevokeCertificateRequest) (*ballastv1.ChangeResponse, error) {
	answer, err := f.desired.RevokeCertificate(ctx, r)
	return answer, refusal(err)
}

func (f *fleetAPI) ListRevocations(ctx context.Context, _ *ballastv1.ListRevocationsRequest) (*ballastv1.ListRevocationsResponse, error) {
	list, err := f.desired.Revocations(ctx)
	return &ballastv1.ListRevocationsResponse{Revocations: RevocationsToProto(list)}, refusal(err)
}
