package api

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
)

// RevocationsToProto writes a list of revoked certificates.
func RevocationsToProto(list []pki.Revocation) []*ballastv1.Revocation {
	sent := make([]*ballastv1.Revocation, len(list))
	for i, r := range list {
		sent[i] = &ballastv1.Revocation{Serial: r.Serial, Name: r.Name, Role: string(r.Role), At: timestamppb.New(r.At), Ends: timestamppb.New(r.Ends), Reason: r.Reason, Authority: r.Authority}
	}
	return sent
}

// RevocationsFromProto reads one. Whether it makes sense is for pki.Credentials.Revoke to check.
func RevocationsFromProto(sent []*ballastv1.Revocation) []pki.Revocation {
	list := make([]pki.Revocation, len(sent))
	at := func(t *timestamppb.Timestamp) (at time.Time) {
		if t != nil {
			at = t.AsTime()
		}
		return at
	}
	for i, r := range sent {
		list[i] = pki.Revocation{Serial: r.Serial, Name: r.Name, Role: pki.Role(r.Role), At: at(r.At), Ends: at(r.Ends), Reason: r.Reason, Authority: r.Authority}
	}
	return list
}
