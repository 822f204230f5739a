package pki

import "errors"

// Reason is why a peer is refused, in one word.
type Reason string

// Reasons, all there are.
const (
	NoCertificate  Reason = "no_certificate"
	OtherAuthority Reason = "authority"
	Expired        Reason = "expired"
	TooEarly       Reason = "not_yet_valid"
	Revoked        Reason = "revoked"
	WrongRole      Reason = "role"
	BadHandshake   Reason = "handshake" // it came to no certificate, or it was not to be read
	NotJoined      Reason = "join"      // it has no certificate, and gets none
)

// Reasons lists them.
func Reasons() []Reason {
	return []Reason{NoCertificate, OtherAuthority, Expired, TooEarly, Revoked, WrongRole, BadHandshake, NotJoined}
}

// refusal is an error with its reason.
type refusal struct {
	reason Reason
	error
}

func (r *refusal) Unwrap() error { return r.error }

// refuse gives an error a reason.
func refuse(reason Reason, err error) error { return &refusal{reason, err} }

// ReasonOf is why this package has refused a peer.
func ReasonOf(err error) Reason {
	var r *refusal
	if errors.As(err, &r) {
		return r.reason
	}
	return BadHandshake
}
