// Nodes that join by a token.
package documents

import (
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Signing is the authority below the root that signs for nodes, with its key.
type Signing struct {
	Certificate []byte `json:"certificate"` // DER
	Key         []byte `json:"key"`         // PKCS #8
}

// Invitation is what controllers know of a token. Its secret is not among it.
type Invitation struct {
	Role      pki.Role      `json:"role"`
	Hash      []byte        `json:"hash"` // of the secret
	Uses      int           `json:"uses"`
	Joined    []string      `json:"joined,omitempty"` // names of nodes, one for each use
	Made      time.Time     `json:"made"`
	Ends      time.Time     `json:"ends"`
	By        api.Caller    `json:"by"`
	Name      string        `json:"name,omitempty"` // of the only node that it is for
	Addresses []netip.Addr  `json:"addresses,omitempty"`
	Life      time.Duration `json:"life"` // of certificates
	Revoked   time.Time     `json:"revoked,omitzero"`
}

// Left is how many nodes may still join by it.
func (i *Invitation) Left() int { return max(0, i.Uses-len(i.Joined)) }

// Enrolled is a node that has a certificate of the signing authority: the newest that was signed for its name.
type Enrolled struct {
	Role       pki.Role      `json:"role"`
	Key        string        `json:"key"`   // pki.KeyID
	Chain      [][]byte      `json:"chain"` // the certificate, and that of the signing authority, in DER
	Addresses  []netip.Addr  `json:"addresses,omitempty"`
	Ends       time.Time     `json:"ends"`
	Life       time.Duration `json:"life"`
	Invitation string        `json:"invitation"` // id
	At         time.Time     `json:"at"`         // it joined
	From       string        `json:"from"`       // address that it joined from
}
