// What a machine that has no certificate says to a controller.
package enrol

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Implementation constants of both ends.
const (
	MessageBytes = 16 << 10         // of a greeting, a request or an answer
	AskTimeout   = 5 * time.Second  // from the connection to the whole request
	SignTimeout  = 30 * time.Second // from there to the answer: controllers may wait for each other
	clockNotable = time.Minute      // by which clocks differ that somebody should hear of
)

// Joined is what a controller has answered.
type Joined struct {
	Chain       [][]byte // the certificate, and that of the signing authority, in DER
	Root        *x509.Certificate
	Controller  string        // who signed
	Controllers []string      // host:port of all
	Drained     []string      // what of the node is given no connections, and the command that ends this
	Local       net.Addr      // that this machine reaches the controller from
	Ahead       time.Duration // of this machine's clock, where that is worth a word
}

// Refused is a controller's answer that it does not sign.
type Refused struct {
	Why   string
	Again bool // another one, or the same later, may
}

func (r *Refused) Error() string { return r.Why }

// Join asks the controller at an address (host:port) for a certificate for a key. Before it has proved that it is a controller of the token's
// fleet it is sent nothing.
func Join(ctx context.Context, address string, token *Token, name string, key *ecdsa.PrivateKey, version string) (*Joined, error) {
	request, err := pki.NewRequest(key, token.Role, name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, AskTimeout+SignTimeout)
	defer cancel()
	config := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{Protocol},
		InsecureSkipVerify: true, // not so: see VerifyConnection
		VerifyConnection: func(state tls.ConnectionState) error {
			_, _, err := pki.Pinned(state.PeerCertificates, token.Root, pki.Controller, time.Time{})
			return err
		}}
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: AskTimeout}, Config: config}
	raw, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	connection := raw.(*tls.Conn)
	from := bufio.NewReader(connection)
	greeting := &ballastv1.JoinGreeting{}
	if err := Receive(from, greeting); err != nil {
		return nil, fmt.Errorf("it did not greet: is this a controller of Ballast, of a version that takes tokens? (%w)", err)
	}
	joined := &Joined{Controller: greeting.Controller, Local: connection.LocalAddr()}
	if joined.Ahead, err = compare(time.Now(), greeting); err != nil {
		return nil, err
	}
	// Now that the clocks are known to agree, by the clock, too.
	if joined.Root, _, err = pki.Pinned(connection.ConnectionState().PeerCertificates, token.Root, pki.Controller, time.Now()); err != nil {
		return nil, err
	}
	answer := &ballastv1.JoinAnswer{}
	err = Send(connection, &ballastv1.JoinRequest{Invitation: token.ID, Secret: token.Secret[:], Request: request, Version: version})
	if err == nil {
		err = Receive(from, answer)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("no answer: %w", err)
	case answer.Refused != "":
		return nil, &Refused{answer.Refused, answer.Again}
	}
	if err := checkControllers(answer.Controllers); err != nil {
		return nil, err
	}
	joined.Chain, joined.Controllers, joined.Drained = answer.Chain, answer.Controllers, answer.Drained
	return joined, pki.Issued(answer.Chain, joined.Root, &pki.Wanted{Role: token.Role, Name: name, Key: &key.PublicKey}, time.Now())
}

// checkControllers refuses what is no list of endpoints: it becomes part of command lines.
func checkControllers(list []string) error {
	if len(list) > maxControllers {
		return fmt.Errorf("it names %d controllers: at most %d", len(list), maxControllers)
	}
	for _, endpoint := range list {
		host, port, err := net.SplitHostPort(endpoint)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		address, other := netip.ParseAddr(host)
		if err != nil || !hostname.MatchString(host) && (other != nil || address.Zone() != "") {
			return fmt.Errorf("it names a controller at %q, which is no host:port", endpoint)
		}
	}
	return nil
}

const maxControllers = 16

var hostname = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]*$`)

// ErrFinal is why another attempt makes no sense.
var ErrFinal = errors.New("set the clock that is wrong, and join again")

// compare refuses clocks that differ by so much that certificates would be refused.
func compare(now time.Time, greeting *ballastv1.JoinGreeting) (ahead time.Duration, err error) {
	if greeting.Time == nil {
		return 0, errors.New("it did not say what its clock says")
	}
	ahead = now.Sub(greeting.Time.AsTime()).Round(time.Second)
	direction := "ahead of"
	if ahead < 0 {
		direction = "behind"
	}
	switch {
	case pki.Differs(ahead):
		return ahead, fmt.Errorf("this machine's clock says %s and is %v %s that of controller %s: %w",
			now.UTC().Format(time.RFC3339), ahead.Abs(), direction, greeting.Controller, ErrFinal)
	case ahead.Abs() < clockNotable:
		return 0, nil
	}
	return ahead, nil
}

// Send writes one message.
func Send(to net.Conn, message proto.Message) error {
	_, err := protodelim.MarshalTo(to, message)
	return err
}

// Receive reads one message that is not too long.
func Receive(from *bufio.Reader, message proto.Message) error {
	return protodelim.UnmarshalOptions{MaxSize: MessageBytes}.UnmarshalFrom(from, message)
}
