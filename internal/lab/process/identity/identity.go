// Package identity is what a lab's TLS servers show: a certificate, and what they make by the file of their host's agent.
package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"math/big"
	"time"
)

const often = 20 * time.Millisecond // that a file is looked for

// Await opens a file as soon as it is there: an agent that starts writes it.
func Await[T any](ctx context.Context, open func(path string) (T, error), path string) (T, error) {
	for {
		opened, err := open(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return opened, err
		}
		select {
		case <-time.After(often):
		case <-ctx.Done():
			return opened, ctx.Err()
		}
	}
}

// SelfSigned makes a certificate that nobody but a lab's clients takes.
func SelfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{"lab"}}
	content, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{content}, PrivateKey: key}, nil
}
