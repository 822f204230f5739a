package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

func delegate(t *testing.T, dir string) *Signing {
	t.Helper()
	s, err := Delegate(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// enrol puts a certificate of the signing authority into a directory of its own.
func enrol(t *testing.T, authority string, s *Signing, request Request) (dir string) {
	t.Helper()
	dir = t.TempDir()
	root, err := readCertificate(certificatePath(authority, authorityName))
	if err != nil {
		t.Fatal(err)
	}
	key, err := NextKey(dir, request.Name)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := s.Sign(&request, &key.PublicKey, time.Now())
	if err = errors.Join(err, Install(dir, request.Name, chain), InstallRoot(dir, root, false)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// forge signs with an authority's key whatever its thief likes, and returns credentials that nobody has checked.
func forge(t *testing.T, dir string, request Request, below []*x509.Certificate, signer *ecdsa.PrivateKey) *Credentials {
	t.Helper()
	key := newKey(t)
	template := leafOf(&request, time.Now(), time.Now().Add(day))
	template.DNSNames = request.DNS
	der, err := x509.CreateCertificate(rand.Reader, template, below[0], key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	root, err := readCertificate(certificatePath(dir, authorityName))
	if err != nil {
		t.Fatal(err)
	}
	chain := append([]*x509.Certificate{leaf}, below...)
	own := tls.Certificate{PrivateKey: key, Leaf: leaf}
	for _, certificate := range chain {
		own.Certificate = append(own.Certificate, certificate.Raw)
	}
	c := &Credentials{dir: dir, name: "forged", current: loaded{own, chain, root}, identity: Identity{Role: request.Role, Name: request.Name}}
	c.seen = c.stamps()
	return c
}

func TestNodesOfTheSigningAuthorityArePeers(t *testing.T) {
	dir := fleet(t)
	s := delegate(t, dir)
	lb, agent := load(t, enrol(t, dir, s, Request{Role: LB, Name: "lb1", Life: day}), "lb1"), load(t, enrol(t, dir, s, Request{Role: Agent, Name: "s1", Life: day}), "s1")
	controller := load(t, dir, "controller")
	for _, node := range []*Credentials{lb, agent} {
		seen, controllerSeen, err, clientErr := meet(t, controller.Server(), node.Client())
		if err != nil || clientErr != nil || seen.Name != node.Identity().Name || controllerSeen.Role != Controller {
			t.Fatalf("%+v, %+v, %v, %v", seen, controllerSeen, err, clientErr)
		}
		if !node.Enrolled() || controller.Enrolled() {
			t.Error("who has joined by a token is not known")
		}
	}
	if seen, other, err, clientErr := meet(t, lb.Server(), agent.Client(LB)); err != nil || clientErr != nil || seen.Name != "s1" || other.Name != "lb1" {
		t.Fatalf("among each other: %+v, %+v, %v, %v", seen, other, err, clientErr)
	}
}

// Promise: No certificate that comes through the signing authority is good for a name of DNS, whatever it is called, and whoever has the authority's key.
func TestTheSigningAuthoritySpeaksForNoNameOfDNS(t *testing.T) {
	dir := fleet(t)
	s := delegate(t, dir)
	controller := load(t, dir, "controller")
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(controller.Root())
	intermediates.AddCert(s.Certificate)
	const host = "www.example.com"
	browses := func(leaf *x509.Certificate) error {
		_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, DNSName: host})
		return err
	}
	node := load(t, enrol(t, dir, s, Request{Role: LB, Name: host, DNS: []string{host}, Life: day}), host)
	if own := node.Own(); len(own.DNSNames) > 0 || browses(own) == nil {
		t.Errorf("a node called %s is good for %q: %v", host, own.DNSNames, browses(own))
	}
	if seen, _, err, clientErr := meet(t, controller.Server(), node.Client()); err != nil || clientErr != nil || seen.Name != host {
		t.Errorf("it is no peer: %+v, %v, %v", seen, err, clientErr)
	}
	thief := forge(t, dir, Request{Role: LB, Name: "lb1", DNS: []string{host}}, []*x509.Certificate{s.Certificate}, s.key)
	var excluded x509.CertificateInvalidError
	if err := browses(thief.Own()); !errors.As(err, &excluded) || excluded.Reason != x509.CANotAuthorizedForThisName {
		t.Errorf("who has the key makes one for %s: %v", host, err)
	}
	if _, _, err, _ := meet(t, controller.Server(), thief.Client()); err == nil {
		t.Error("controllers take it")
	}
}

// Signing authorities of before had no constraint, and their nodes names of DNS: both go on.
func TestASigningAuthorityOfBeforeGoesOn(t *testing.T) {
	dir := fleet(t)
	root, signer, err := readPair(dir, authorityName)
	if err != nil {
		t.Fatal(err)
	}
	key := newKey(t)
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "before"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(day),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true}
	der, err := x509.CreateCertificate(rand.Reader, template, root, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	before, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	controller := load(t, dir, "controller")
	s, err := controller.Signing(encoded(t, &Signing{before, key}))
	if err != nil {
		t.Fatal(err)
	}
	for what, node := range map[string]*Credentials{
		"one of now":    load(t, enrol(t, dir, s, Request{Role: LB, Name: "lb1", Life: time.Hour}), "lb1"),
		"one of before": forge(t, dir, Request{Role: LB, Name: "lb2", DNS: []string{"lb2"}}, []*x509.Certificate{before}, key),
	} {
		if _, _, err, clientErr := meet(t, controller.Server(), node.Client()); err != nil || clientErr != nil {
			t.Errorf("%s is refused: %v, %v", what, err, clientErr)
		}
		if len(node.Own().DNSNames) > 0 != (what == "one of before") {
			t.Errorf("%s has names %q", what, node.Own().DNSNames)
		}
	}
}

// Promise: A certificate that comes through the signing authority is refused everywhere unless it is for role lb or agent.
func TestTheSigningAuthoritySpeaksForNodesAlone(t *testing.T) {
	dir := fleet(t)
	s := delegate(t, dir)
	controller, lb := load(t, dir, "controller"), load(t, dir, "lb")
	for _, role := range []Role{Controller, Ctl, Etcd} {
		if _, err := s.Sign(&Request{Role: role, Name: "x", Life: day}, &newKey(t).PublicKey, time.Now()); err == nil {
			t.Errorf("signs for role %s", role)
		}
		thief := forge(t, dir, Request{Role: role, Name: "controller"}, []*x509.Certificate{s.Certificate}, s.key)
		const wanted = "comes from the signing authority"
		if _, _, err, _ := meet(t, controller.Server(), thief.Client()); err == nil || !strings.Contains(err.Error(), wanted) || ReasonOf(err) != WrongRole {
			t.Errorf("a client of role %s: %v", role, err)
		}
		if _, _, _, err := meet(t, thief.Server(), lb.Client(role)); err == nil || !strings.Contains(err.Error(), wanted) {
			t.Errorf("a server of role %s: %v", role, err)
		}
		signed, err := thief.Sign("ring", []byte("text"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lb.SignedBy(role, "ring", signed, time.Now()); err == nil {
			t.Errorf("a text signed as %s is believed", role)
		}
		chain := [][]byte{thief.current.own.Certificate[0], thief.current.own.Certificate[1]}
		if err := errors.Join(writeChain(certificatePath(dir, "forged"), chain), writeKey(keyPath(dir, "forged"), thief.current.own.PrivateKey.(*ecdsa.PrivateKey))); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir, "forged", role); err == nil || !strings.Contains(err.Error(), "signs for roles lb and agent alone") {
			t.Errorf("a process starts as role %s: %v", role, err)
		}
		if _, _, err := Pinned(append(thief.current.chain, thief.current.root), HashOf(thief.current.root), role, time.Now()); err == nil {
			t.Errorf("who joins believes one of role %s", role)
		}
	}
}

func TestNobodyIsBelievedBelowTheSigningAuthority(t *testing.T) {
	dir := fleet(t)
	s := delegate(t, dir)
	controller := load(t, dir, "controller")
	subordinate := newKey(t)
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "below"}, SerialNumber: s.Certificate.SerialNumber, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(day),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, template, s.Certificate, subordinate.Public(), s.key)
	if err != nil {
		t.Fatal(err)
	}
	below, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	node := forge(t, dir, Request{Role: LB, Name: "lb1"}, []*x509.Certificate{s.Certificate}, s.key)
	for name, thief := range map[string]*Credentials{
		"an authority": forge(t, dir, Request{Role: LB, Name: "lb1"}, []*x509.Certificate{below, s.Certificate}, subordinate),
		"a node":       forge(t, dir, Request{Role: LB, Name: "lb2"}, node.current.chain, node.current.own.PrivateKey.(*ecdsa.PrivateKey)),
	} {
		if _, _, err, _ := meet(t, controller.Server(), thief.Client()); err == nil {
			t.Errorf("what %s below it has signed is accepted", name)
		}
	}
	if _, _, err, _ := meet(t, controller.Server(), node.Client()); err != nil {
		t.Errorf("a node of its own is refused: %v", err)
	}
}

func TestARootOfAnOlderVersionHasNoSigningAuthority(t *testing.T) {
	dir, key := t.TempDir(), newKey(t)
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "old"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(day),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err = errors.Join(err, writePair(dir, authorityName, [][]byte{der}, key)); err != nil {
		t.Fatal(err)
	}
	if _, err := Delegate(dir, 0); err == nil || !strings.Contains(err.Error(), "ballast ctl pki init") {
		t.Errorf("%v", err)
	}
	issue(t, dir, Request{Role: Controller, Name: "c1", Life: time.Hour})
	issue(t, dir, Request{Role: LB, Name: "lb1", Life: time.Hour})
	if _, _, err, clientErr := meet(t, load(t, dir, "c1").Server(), load(t, dir, "lb1").Client()); err != nil || clientErr != nil {
		t.Errorf("what it has issued is refused: %v, %v", err, clientErr)
	}
}

// Promise: A certificate of the signing authority is revoked like any other, and with the signing authority all that it has signed are.
func TestCertificatesOfTheSigningAuthorityAreRevoked(t *testing.T) {
	dir := fleet(t)
	s := delegate(t, dir)
	node := enrol(t, dir, s, Request{Role: LB, Name: "lb1", Life: day})
	der, err := ReadChain(certificatePath(node, "lb1"))
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := load(t, dir, "controller").Revocable(der, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	authority, err := load(t, dir, "controller").Revocable(s.Certificate.Raw, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]Revocation{
		"serial": RevocationOf(leaf, time.Now(), ""), "name": {Name: "lb1", At: time.Now()}, "authority": RevocationOf(authority, time.Now(), ""),
	} {
		controller, lb, other := load(t, dir, "controller"), load(t, node, "lb1"), load(t, dir, "lb")
		cut := 0
		if _, err := controller.Hold(lb.latest().chain, func(error) { cut++ }); err != nil {
			t.Fatal(err)
		}
		for _, who := range []*Credentials{controller, lb} {
			if news, err := who.Revoke([]Revocation{r}, time.Now()); err != nil || len(news) != 1 {
				t.Fatal(news, err)
			}
		}
		if _, _, err, _ := meet(t, controller.Server(), load(t, node, "lb1").Client()); err == nil || ReasonOf(err) != Revoked || !strings.Contains(err.Error(), "ballast join --again") {
			t.Errorf("%s: %v", name, err)
		}
		if cut != 1 || lb.OwnRevoked() == nil {
			t.Errorf("%s: cut %d times, own %v", name, cut, lb.OwnRevoked())
		}
		if _, _, err, clientErr := meet(t, controller.Server(), other.Client()); err != nil || clientErr != nil {
			t.Errorf("%s: one of the root is refused: %v, %v", name, err, clientErr)
		}
		if _, err := controller.Signing(encoded(t, s)); (err == nil) != (name != "authority") {
			t.Errorf("%s: the signing authority: %v", name, err)
		}
	}
}

func encoded(t *testing.T, s *Signing) (certificate, key []byte, now time.Time) {
	t.Helper()
	certificate, key, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key, time.Now()
}

func TestASigningAuthorityOfAnotherFleetIsNotTaken(t *testing.T) {
	dir := fleet(t)
	controller := load(t, dir, "controller")
	own, foreign := delegate(t, dir), delegate(t, fleet(t))
	certificate, key, now := encoded(t, own)
	_, otherKey, _ := encoded(t, foreign)
	stranger, strangerKey, _ := encoded(t, foreign)
	for name, test := range map[string]struct {
		certificate, key []byte
		now              time.Time
		wanted           string
	}{
		"its own":     {certificate, key, now, ""},
		"another key": {certificate, otherKey, now, "does not belong"},
		"another":     {stranger, strangerKey, now, "not of this fleet"},
		"expired":     {certificate, key, now.Add(2 * DefaultAuthorityLife), "has expired"},
		"no key":      {certificate, nil, now, "does not belong"},
		"damaged":     {certificate[1:], key, now, "read the signing authority"},
	} {
		if _, err := controller.Signing(test.certificate, test.key, test.now); (test.wanted == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.wanted) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whenever a process ends while it replaces its certificate, the next one has a certificate with its key.
func TestARenewalThatIsCutShortLeavesAPair(t *testing.T) {
	dir := fleet(t)
	s := delegate(t, dir)
	node := enrol(t, dir, s, Request{Role: LB, Name: "lb1", Life: day})
	running := load(t, node, "lb1")
	before := running.Own()
	next, err := NextKey(node, "lb1")
	if err != nil {
		t.Fatal(err)
	}
	if same, err := NextKey(node, "lb1"); err != nil || !same.Equal(next) {
		t.Fatalf("who asks again asks with another key: %v", err)
	}
	if !load(t, node, "lb1").Own().Equal(before) {
		t.Fatal("the key that is asked for is taken early")
	}
	chain, err := s.Sign(&Request{Role: LB, Name: "lb1", Life: day}, &next.PublicKey, time.Now())
	if err = errors.Join(err, writeChain(certificatePath(node, "lb1"), chain)); err != nil { // and there it ends
		t.Fatal(err)
	}
	for _, c := range []*Credentials{running, load(t, node, "lb1")} {
		if c.Own().Equal(before) || len(c.Warnings(time.Now())) > 0 {
			t.Errorf("with a certificate that is replaced, and a key that is not yet: %v, %q", c.Own().Equal(before), c.Warnings(time.Now()))
		}
	}
	another, err := NextKey(node, "lb1")
	if err != nil || another.Equal(next) {
		t.Fatalf("the key that is in use is asked for again: %v", err)
	}
	if key, err := readKey(keyPath(node, "lb1")); err != nil || !key.Equal(next) {
		t.Errorf("the key is not put in its place: %v", err)
	}
	if err := Install(node, "lb1", chain); err == nil {
		t.Error("a certificate for another key is installed")
	}
	if err := os.Remove(nextKeyPath(node, "lb1")); err != nil {
		t.Fatal(err)
	}
	if Install(node, "lb1", chain) == nil || load(t, node, "lb1").Own() == nil {
		t.Error("without the key that was asked for")
	}
}

// A certificate of 30 days is renewed at 20: there is a warning if it was not.
func TestWarningsOfWhatRenewsItselfBeginOnceItHasNot(t *testing.T) {
	dir := fleet(t)
	credentials := load(t, enrol(t, dir, delegate(t, dir), Request{Role: LB, Name: "lb1", Life: DefaultEnrolledLife}), "lb1")
	if at := time.Until(RenewAt(credentials.Own())); at < 19*day || at > 20*day {
		t.Errorf("it is renewed in %v", at)
	}
	for after, wanted := range map[time.Duration]string{0: "", 22 * day: "", 23 * day: "controllers renew it before", 31 * day: "ballast join --again"} {
		if warnings := strings.Join(credentials.Warnings(time.Now().Add(after)), "\n"); (wanted == "") != (warnings == "") || !strings.Contains(warnings, wanted) {
			t.Errorf("after %v: %q", after, warnings)
		}
	}
}

func TestARequestIsOfWhoHasItsKey(t *testing.T) {
	key := newKey(t)
	good, err := NewRequest(key, LB, "lb1")
	if err != nil {
		t.Fatal(err)
	}
	if w, err := ParseRequest(good); err != nil || w.Role != LB || w.Name != "lb1" || !w.Key.Equal(&key.PublicKey) {
		t.Fatalf("%+v, %v", w, err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request := func(key *ecdsa.PrivateKey, role Role, name string) []byte {
		der, err := NewRequest(key, role, name)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	changed := append([]byte{}, good...)
	changed[len(changed)-1] ^= 1
	for name, der := range map[string][]byte{"another signature": changed, "another kind of key": request(p384, LB, "lb1"), "no role": request(key, "", "lb1"),
		"a path for a name": request(key, LB, "../lb1"), "nothing": nil, "more": append(append([]byte{}, good...), 0)} {
		if w, err := ParseRequest(der); err == nil {
			t.Errorf("%s is taken: %+v", name, w)
		}
	}
}

func TestWhoJoinsBelievesTheControllerOfItsTokenAlone(t *testing.T) {
	dir, foreign := fleet(t), fleet(t)
	controller := load(t, dir, "controller")
	issue(t, dir, Request{Role: Controller, Name: "old", Life: -time.Minute})
	root := controller.Root()
	shown := func(dir, name string) []*x509.Certificate {
		c := load(t, dir, name)
		return append(c.latest().chain, c.Root())
	}
	for name, test := range map[string]struct {
		chain []*x509.Certificate
		now   time.Time
		good  bool
	}{
		"a controller":            {shown(dir, "controller"), time.Now(), true},
		"an lb":                   {shown(dir, "lb"), time.Now(), false},
		"another fleet's":         {shown(foreign, "controller"), time.Now(), false},
		"another's with our root": {append(shown(foreign, "controller"), root), time.Now(), false},
		"the root alone":          {[]*x509.Certificate{root}, time.Now(), false},
		"without the root":        {shown(dir, "controller")[:1], time.Now(), false},
		"one that has expired":    {shown(dir, "old"), time.Now(), false},
		"at whatever time":        {shown(dir, "old"), time.Time{}, true},
		"nothing":                 {nil, time.Now(), false},
	} {
		if _, _, err := Pinned(test.chain, HashOf(root), Controller, test.now); (err == nil) != test.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}
