package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func owned(t *testing.T, dir, name string) Revocation {
	t.Helper()
	certificate, err := ReadCertificate(certificatePath(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return RevocationOf(certificate, time.Now(), "lost")
}

// Lists that are heard in any order, in parts, twice, from whomever, come to the same, and none takes back what another has said.
func TestListsOfRevokedCertificatesComeToTheSameInAnyOrder(t *testing.T) {
	dir := fleet(t)
	now := time.Now()
	rapid.Check(t, func(t *rapid.T) {
		entry := rapid.Custom(func(t *rapid.T) Revocation {
			r := Revocation{At: now.Add(time.Duration(rapid.IntRange(-5, 5).Draw(t, "at")) * time.Hour), Ends: now.Add(time.Duration(rapid.IntRange(-3, 9).Draw(t, "ends")) * time.Hour)}
			if rapid.Bool().Draw(t, "by name") {
				r.Name, r.Role = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name"), rapid.SampledFrom([]Role{"", LB, Agent}).Draw(t, "role")
			} else {
				r.Serial = strings.Repeat(rapid.SampledFrom([]string{"0", "1"}).Draw(t, "serial"), serialDigits)
			}
			return r
		})
		list := rapid.SliceOfN(entry, 0, 8).Draw(t, "list")
		know := func(parts ...[]Revocation) map[string]Revocation {
			credentials, err := Load(dir, "lb", LB)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range parts {
				if _, err := credentials.Revoke(part, now); err != nil {
					t.Fatal(err)
				}
			}
			known := map[string]Revocation{}
			for _, r := range credentials.Revoked() {
				known[r.Key()] = r
			}
			return known
		}
		cut := rapid.IntRange(0, len(list)).Draw(t, "cut")
		one, other := know(list), know(rapid.Permutation(list).Draw(t, "order"), list[cut:], list[:cut], nil)
		if len(one) != len(other) {
			t.Fatalf("%v and %v", one, other)
		}
		for key, r := range one {
			if !r.At.Equal(other[key].At) || !r.Ends.Equal(other[key].Ends) {
				t.Fatalf("%v and %v", r, other[key])
			}
		}
	})
}

func TestRevokedCertificatesAreRefusedByBothSides(t *testing.T) {
	dir := fleet(t)
	controller, lb := load(t, dir, "controller"), load(t, dir, "lb")
	if _, _, err, clientErr := meet(t, controller.Server(), lb.Client()); err != nil || clientErr != nil {
		t.Fatal(err, clientErr)
	}
	revoke := func(who *Credentials, r Revocation) {
		t.Helper()
		if news, err := who.Revoke([]Revocation{r}, time.Now()); err != nil || len(news) != 1 {
			t.Fatal(news, err)
		}
	}
	revoke(lb, owned(t, dir, "controller"))
	if _, _, _, err := meet(t, controller.Server(), lb.Client()); err == nil || !strings.Contains(err.Error(), "was revoked at") {
		t.Errorf("a revoked controller: %v", err)
	}
	other := load(t, dir, "lb")
	revoke(controller, Revocation{Name: "lb", At: time.Now(), Reason: "lost"})
	if _, _, err, _ := meet(t, controller.Server(), other.Client()); err == nil || !strings.Contains(err.Error(), "lost: issue a new one") {
		t.Errorf("a revoked load balancer: %v", err)
	}
	revoke(other, owned(t, dir, "lb"))
	if warnings := other.Warnings(time.Now()); len(warnings) != 1 || !strings.Contains(warnings[0], "lb.crt was revoked at") {
		t.Errorf("its warnings: %q", warnings)
	}
	// Of a new authority all are good, and what was said of the old one is forgotten.
	if err := errors.Join(Init(dir, DefaultAuthorityLife, true), Issue(dir, Request{Role: LB, Name: "lb", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}, Force: true}),
		Issue(dir, Request{Role: Controller, Name: "controller", Force: true})); err != nil {
		t.Fatal(err)
	}
	if _, err := controller.Revoke(nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, _, err, clientErr := meet(t, controller.Server(), other.Client()); err != nil || clientErr != nil {
		t.Errorf("of a new authority: %v, %v", err, clientErr)
	}
}

// Promise: A revocation of a name and role is of no other role's certificates; one without a role is of all.
func TestARevocationOfARoleIsOfNoOther(t *testing.T) {
	dir := fleet(t)
	own, err := ReadCertificate(certificatePath(dir, "lb"))
	if err != nil {
		t.Fatal(err)
	}
	for role, revoked := range map[Role]bool{"": true, LB: true, Agent: false, Ctl: false} {
		credentials := load(t, dir, "controller")
		if news, err := credentials.Revoke([]Revocation{{Name: "lb", Role: role, At: time.Now()}}, time.Now()); err != nil || len(news) != 1 {
			t.Fatal(news, err)
		}
		if (credentials.Refused(own) != nil) != revoked {
			t.Errorf("of role %q: %v", role, credentials.Refused(own))
		}
		if credentials.Revoke([]Revocation{{Name: "lb", At: time.Now()}}, time.Now()); credentials.Refused(own) == nil {
			t.Errorf("of all roles, after role %q: it is good", role)
		}
	}
	if _, err := load(t, dir, "controller").Revoke([]Revocation{{Name: "lb", Role: "king", At: time.Now()}}, time.Now()); err == nil {
		t.Error("there is no such role")
	}
}

// What is held is cut once, by whatever entry; what was released is not.
func TestWhatARevokedCertificateHoldsIsCutOnce(t *testing.T) {
	dir := fleet(t)
	credentials := load(t, dir, "controller")
	certificate, err := ReadCertificate(certificatePath(dir, "lb"))
	if err != nil {
		t.Fatal(err)
	}
	cut := map[string]int{}
	hold := func(what string) (release func()) {
		release, err := credentials.Hold([]*x509.Certificate{certificate}, func(error) { cut[what]++ })
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	released, held := hold("released"), hold("held")
	released()
	for _, r := range []Revocation{owned(t, dir, "agent"), owned(t, dir, "lb"), {Name: "lb", At: time.Now()}} {
		if _, err := credentials.Revoke([]Revocation{r}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	held()
	if cut["held"] != 1 || cut["released"] != 0 {
		t.Errorf("cut: %v", cut)
	}
	if _, err := credentials.Hold([]*x509.Certificate{certificate}, func(error) { t.Error("called") }); err == nil {
		t.Error("it holds something again")
	}
}

// A connection of Dialer is closed when its peer is revoked.
func TestConnectionsToARevokedPeerAreClosed(t *testing.T) {
	dir := fleet(t)
	controller, lb := load(t, dir, "controller"), load(t, dir, "lb")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		config := controller.Server()
		config.NextProtos = []string{"h2"}
		secure := tls.NewListener(listener, config)
		for {
			connection, err := secure.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(connection, connection); connection.Close() }()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	dial := lb.Dialer(lb.Client(), (&net.Dialer{}).DialContext)
	connection, err := dial(ctx, "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { _, err := io.Copy(io.Discard, connection); ended <- err }()
	if _, err := lb.Revoke([]Revocation{owned(t, dir, "controller")}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("it ended by itself")
	}
	connection.Close()
	if connection, err := dial(ctx, "tcp", listener.Addr().String()); err == nil {
		connection.Close()
		t.Error("there is another one")
	}
	if len(lb.revoked.held) != 0 {
		t.Errorf("%d are still held", len(lb.revoked.held))
	}
}

func TestSerialNumbersAreReadAsToolsPrintThem(t *testing.T) {
	dir := fleet(t)
	serial := owned(t, dir, "lb").Serial
	pairs := strings.ToUpper(serial[:2])
	for i := 2; i < len(serial); i += 2 {
		pairs += ":" + serial[i:i+2]
	}
	for _, text := range []string{serial, strings.ToUpper(serial), pairs} {
		if read, ok := ParseSerial(text); !ok || read != serial {
			t.Errorf("%s is %s, %v", text, read, ok)
		}
	}
	for _, text := range []string{"", "lb", serial[1:], serial + "00", "2001:db8::1", strings.Repeat("g", serialDigits)} {
		if read, ok := ParseSerial(text); ok {
			t.Errorf("%q is %s", text, read)
		}
	}
}

func TestWhatCannotBeRevokedIsSaidWithTheReason(t *testing.T) {
	dir, foreign := fleet(t), fleet(t)
	credentials := load(t, dir, "controller")
	for _, test := range []struct{ dir, name, wanted string }{
		{dir, "ca", "the authority itself"}, {foreign, "lb", "not from this fleet's authority"}, {dir, "lb", ""},
	} {
		certificate, err := ReadCertificate(filepath.Join(test.dir, test.name+".crt"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err = credentials.Revocable(certificate.Raw, time.Now()); (test.wanted == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.wanted) {
			t.Errorf("%s: %v", test.name, err)
		}
		if _, err := credentials.Revocable(certificate.Raw, time.Now().Add(DefaultLife+day)); err == nil {
			t.Errorf("%s, when it has expired: no objection", test.name)
		}
	}
	if _, err := ReadCertificate(filepath.Join(dir, "nobody.crt")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
