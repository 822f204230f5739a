package pki

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fleet makes an authority with one certificate per role, named like it.
func fleet(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := Init(dir, DefaultAuthorityLife, false); err != nil {
		t.Fatal(err)
	}
	for _, role := range Roles() {
		issue(t, dir, Request{Role: role, Name: string(role)})
	}
	return dir
}

func issue(t *testing.T, dir string, request Request) {
	t.Helper()
	if err := Issue(dir, request); err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, dir, name string) *Credentials {
	t.Helper()
	credentials, err := Load(dir, name, "")
	if err != nil {
		t.Fatal(err)
	}
	return credentials
}

// meet has a client connect to a server and returns whom each saw, or why it did not want to.
func meet(t *testing.T, server, client *tls.Config) (seenByServer, seenByClient Identity, serverError, clientError error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := listener.Accept()
		if err != nil {
			serverError = err
			return
		}
		defer raw.Close()
		connection := tls.Server(raw, server)
		if serverError = connection.HandshakeContext(ctx); serverError == nil {
			seenByServer, serverError = PeerIdentity(connection.ConnectionState())
			connection.Write([]byte("x"))
		}
	}()
	raw, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	connection := tls.Client(raw, client)
	defer connection.Close()
	if clientError = connection.HandshakeContext(ctx); clientError == nil {
		if seenByClient, clientError = PeerIdentity(connection.ConnectionState()); clientError == nil {
			_, clientError = io.ReadFull(connection, make([]byte, 1)) // TLS 1.3: the server's refusal comes after the handshake
		}
	}
	raw.Close()
	<-done
	return seenByServer, seenByClient, serverError, clientError
}

func TestPeersKnowEachOther(t *testing.T) {
	dir := fleet(t)
	address := netip.MustParseAddr("2001:db8::1")
	issue(t, dir, Request{Role: Agent, Name: "web-1", Addresses: []netip.Addr{address}, DNS: []string{"web.example"}})
	agent, controller, err, clientErr := meet(t, load(t, dir, "controller").Server(), load(t, dir, "web-1").Client())
	if err != nil || clientErr != nil {
		t.Fatal(err, clientErr)
	}
	if controller.Role != Controller || controller.Name != "controller" {
		t.Errorf("the client saw %+v", controller)
	}
	if agent.Role != Agent || agent.Name != "web-1" || len(agent.Addresses) != 1 || agent.Addresses[0] != address || strings.Join(agent.DNS, " ") != "web.example web-1" {
		t.Errorf("the server saw %+v", agent)
	}
}

// Promise: A peer without certificate, or with one of another authority, role or name, or an expired one, is
// refused by both sides with the reason, and counted.
func TestWhoIsNotOfTheFleetIsRefused(t *testing.T) {
	dir, foreign := fleet(t), fleet(t)
	for _, test := range []struct {
		name           string
		server, client *tls.Config
		wanted         string // in the error of either
	}{
		{"a client of another authority", load(t, dir, "controller").Server(), load(t, foreign, "lb").Client(), "not from our authority"},
		{"a client without certificate", load(t, dir, "controller").Server(), &tls.Config{InsecureSkipVerify: true}, "certificate"},
		{"a member of etcd", load(t, dir, "controller").Server(), load(t, dir, "etcd").Client(), "has role etcd"},
		{"a server that is no controller", load(t, dir, "agent").Server(), load(t, dir, "lb").Client(), "has role agent, which must be controller"},
		{"an old protocol", load(t, dir, "controller").Server(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}, "version"},
	} {
		_, _, err, clientErr := meet(t, test.server, test.client)
		if err == nil && clientErr == nil {
			t.Errorf("%s: was taken", test.name)
		} else if joined := errors.Join(err, clientErr).Error(); !strings.Contains(joined, test.wanted) {
			t.Errorf("%s: %v, want %q", test.name, joined, test.wanted)
		}
	}
}

// Promise: A host whose clock is wrong by more than an hour refuses new certificates, and those near their end.
func TestExpiredCertificatesAreRefusedByBothSides(t *testing.T) {
	dir := fleet(t)
	issue(t, dir, Request{Role: LB, Name: "old", Life: -time.Minute})
	if _, _, err, _ := meet(t, load(t, dir, "controller").Server(), load(t, dir, "old").Client()); err == nil || !strings.Contains(err.Error(), "has expired") {
		t.Errorf("an expired client: %v", err)
	}
	issue(t, dir, Request{Role: Controller, Name: "old", Life: -time.Minute, Force: true})
	if _, _, _, err := meet(t, load(t, dir, "old").Server(), load(t, dir, "lb").Client()); err == nil || !strings.Contains(err.Error(), "has expired") {
		t.Errorf("an expired server: %v", err)
	}
}

func TestRenewedCertificatesAreUsedWithoutARestart(t *testing.T) {
	dir := fleet(t)
	server, client := load(t, dir, "controller"), load(t, dir, "lb")
	serving, dialling := server.Server(), client.Client()
	issue(t, dir, Request{Role: LB, Name: "lb", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}, Force: true})
	seen, _, err, clientErr := meet(t, serving, dialling)
	if err != nil || clientErr != nil || len(seen.Addresses) != 1 {
		t.Fatalf("after the client's renewal: %+v, %v, %v", seen, err, clientErr)
	}

	// Everything anew, the authority too, one file after the other.
	if err := Init(dir, DefaultAuthorityLife, true); err != nil {
		t.Fatal(err)
	}
	if _, _, err, clientErr := meet(t, serving, dialling); err != nil || clientErr != nil {
		t.Errorf("with the old certificates, while the new are not complete: %v, %v", err, clientErr)
	}
	if warnings := server.Warnings(time.Now()); len(warnings) != 1 || !strings.Contains(warnings[0], "not used") {
		t.Errorf("warnings are %q", warnings)
	}
	issue(t, dir, Request{Role: LB, Name: "lb", Force: true})
	issue(t, dir, Request{Role: Controller, Name: "controller", Force: true})
	if seen, _, err, clientErr = meet(t, serving, dialling); err != nil || clientErr != nil || len(seen.Addresses) != 0 {
		t.Errorf("with a new authority: %+v, %v, %v", seen, err, clientErr)
	}
	if warnings := server.Warnings(time.Now()); len(warnings) != 0 {
		t.Errorf("warnings are %q", warnings)
	}
}

// Whoever opens a pipe waits for a writer, and everybody for him.
func TestAPipeIsNoRenewal(t *testing.T) {
	for _, name := range []string{"lb.crt", "lb.key", "ca.crt"} {
		dir := fleet(t)
		credentials := load(t, dir, "lb")
		path := filepath.Join(dir, name)
		if err := errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)); err != nil {
			t.Fatal(err)
		}
		if warnings := credentials.Warnings(time.Now()); len(warnings) != 1 || !strings.Contains(warnings[0], path+": not a regular file") {
			t.Errorf("warnings are %q", warnings)
		}
		if credentials.Identity().Role != LB {
			t.Errorf("without %s it is nobody", name)
		}
	}
}

func TestACertificateOfSomebodyElseIsNoRenewal(t *testing.T) {
	dir := fleet(t)
	credentials := load(t, dir, "lb")
	issue(t, dir, Request{Role: Agent, Name: "lb", Force: true})
	if identity := credentials.Identity(); identity.Role != LB {
		t.Errorf("is %+v", identity)
	}
	if warnings := credentials.Warnings(time.Now()); len(warnings) != 1 || !strings.Contains(warnings[0], "restart") {
		t.Errorf("warnings are %q", warnings)
	}
}

func TestWarningsBeginInTime(t *testing.T) {
	dir := fleet(t)
	credentials := load(t, dir, "lb")
	for _, test := range []struct {
		after  time.Duration
		wanted string
	}{
		{DefaultLife - WarnBefore - day, ""},
		{DefaultLife - WarnBefore + day, "lb.crt expires on"},
		{DefaultLife + day, "set the clock, or issue it again"},
		{-clockSkew / 2, ""},
		{-2 * clockSkew, "set the clock"},
	} {
		warnings := strings.Join(credentials.Warnings(time.Now().Add(test.after)), "\n")
		if (test.wanted == "") != (warnings == "") || !strings.Contains(warnings, test.wanted) {
			t.Errorf("after %v: %q, want %q", test.after, warnings, test.wanted)
		}
	}
}

func TestNothingIsReplacedUnlessForced(t *testing.T) {
	dir := fleet(t)
	before, err := os.ReadFile(filepath.Join(dir, "lb.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := Init(dir, DefaultAuthorityLife, false); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("init again: %v", err)
	}
	if err := Issue(dir, Request{Role: LB, Name: "lb"}); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("issue again: %v", err)
	}
	if after, err := os.ReadFile(filepath.Join(dir, "lb.key")); err != nil || string(after) != string(before) {
		t.Error("the key has changed")
	}
}

func TestKeysCanBeReadByTheirOwnerOnly(t *testing.T) {
	dir := fleet(t)
	for _, name := range []string{"ca", "lb"} {
		if info, err := os.Stat(filepath.Join(dir, name+".key")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s.key: %v, %v", name, info.Mode(), err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "lb.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir, "lb", LB); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key for everybody: %v", err)
	}
}

func TestLoadFindsTheOnlyCertificateOfARole(t *testing.T) {
	dir := fleet(t)
	credentials, err := Load(dir, "", Agent)
	if err != nil || credentials.Identity().Name != "agent" {
		t.Fatal(err)
	}
	issue(t, dir, Request{Role: Agent, Name: "agent-2"})
	empty := t.TempDir()
	for _, test := range []struct {
		dir, name string
		role      Role
		wanted    string
	}{
		{dir, "", Agent, "it could be any of"},
		{dir, "lb", Agent, "is for role lb: use one for role agent"},
		{dir, "nobody", LB, "ballast ctl pki issue"},
		{empty, "", LB, "no certificate for role lb"},
		{empty, "lb", LB, "ballast ctl pki issue"},
	} {
		if _, err := Load(test.dir, test.name, test.role); err == nil || !strings.Contains(err.Error(), test.wanted) {
			t.Errorf("load %q for %q: %v, want %q", test.name, test.role, err, test.wanted)
		}
	}
}

func TestWhatCannotBeIssuedIsRefusedWithTheRemedy(t *testing.T) {
	dir := fleet(t)
	for _, test := range []struct {
		dir     string
		request Request
		wanted  string
	}{
		{dir, Request{Role: LB, Name: "ca"}, "the authority's"},
		{dir, Request{Role: LB, Name: "../lb"}, "begin with a letter"},
		{dir, Request{Role: LB, Name: "a/b"}, "use letters"},
		{dir, Request{Role: "root", Name: "x"}, "use one of controller lb agent ctl"},
		{dir, Request{Role: LB, Name: "x", Life: 2 * DefaultAuthorityLife}, "fewer --days"},
		{t.TempDir(), Request{Role: LB, Name: "x"}, "ballast ctl pki init"},
	} {
		if err := Issue(test.dir, test.request); err == nil || !strings.Contains(err.Error(), test.wanted) {
			t.Errorf("%+v: %v, want %q", test.request, err, test.wanted)
		}
	}
}

func TestShowSaysWhatIsWrong(t *testing.T) {
	dir, foreign := fleet(t), fleet(t)
	for _, suffix := range []string{".crt", ".key"} {
		if err := os.Rename(filepath.Join(foreign, "ctl"+suffix), filepath.Join(dir, "ctl"+suffix)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "lb.key")); err != nil {
		t.Fatal(err)
	}
	issue(t, dir, Request{Role: Agent, Name: "2001:db8::7", Life: day})
	entries, err := Show(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]Entry{}
	for _, entry := range entries {
		found[entry.Name] = entry
	}
	for name, wanted := range map[string]string{"ca": "", "controller": "", "lb": "", "ctl": "not from this authority", "2001:db8::7": "expires soon"} {
		problems := strings.Join(found[name].Problems, "\n")
		if (wanted == "") != (problems == "") || !strings.Contains(problems, wanted) {
			t.Errorf("%s: %q, want %q", name, problems, wanted)
		}
	}
	if found["lb"].Key || !found["controller"].Key {
		t.Error("keys that are there and are not are confused")
	}
	if addresses := found["2001:db8::7"].Addresses; len(addresses) != 1 || addresses[0].String() != "2001:db8::7" {
		t.Errorf("a name that is an address: %v", addresses)
	}
}
