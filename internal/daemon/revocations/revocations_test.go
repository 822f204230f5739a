package revocations

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

func list(from, to int) *ballastv1.Revocations {
	var entries []pki.Revocation
	for i := from; i < to; i++ {
		entries = append(entries, pki.Revocation{Serial: fmt.Sprintf("%040x", i), At: time.Now(), Ends: time.Now().Add(time.Hour)})
	}
	return &ballastv1.Revocations{Revocations: api.RevocationsToProto(entries)}
}

func TestWhatWasToldIsKnownInTheNextLife(t *testing.T) {
	ca, state := fleettest.NewAuthority(t), filepath.Join(t.TempDir(), "default", "state.json")
	next := func() (*List, *pki.Credentials) {
		credentials := ca.Issue(pki.LB, "lb1")
		l, err := Load(credentials, state, pki.LB, fleettest.Log(t))
		fleettest.Require(t, err)
		return l, credentials
	}
	knows := func(credentials *pki.Credentials, wanted int) {
		t.Helper()
		if n, _ := credentials.RevokedCount(); n != wanted {
			t.Errorf("%d entries, want %d", n, wanted)
		}
	}
	l, credentials := next()
	l.Take("c1", list(1, 4))
	l.Take("c2", list(2, 3)) // an older list takes nothing back
	l.Take("c2", &ballastv1.Revocations{})
	knows(credentials, 3)
	_, credentials = next()
	knows(credentials, 3)

	// What cannot be saved is tried again, and said.
	folder := filepath.Dir(state)
	fleettest.Require(t, os.RemoveAll(folder))
	fleettest.Require(t, os.WriteFile(folder, nil, 0o600))
	l.Take("c1", list(4, 5))
	if problems := l.Problems(); len(problems) != 1 || !strings.Contains(problems[0], "a restart would know fewer") {
		t.Errorf("problems are %q", problems)
	}
	fleettest.Require(t, os.Remove(folder))
	if problems := l.Problems(); len(problems) != 0 {
		t.Errorf("problems are %q", problems)
	}
	_, credentials = next()
	knows(credentials, 4)
}

// Whoever speaks for a controller, as a thief does until he is revoked, can neither fill a node's memory, nor have it refuse certificates
// that are not issued yet, nor stop it.
func TestAListThatMakesNoSenseIsTakenAsFarAsItDoes(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	credentials := ca.Issue(pki.Agent, "a1")
	l, err := Load(credentials, filepath.Join(t.TempDir(), "state.json"), pki.Agent, fleettest.Log(t))
	fleettest.Require(t, err)
	l.Take("thief", &ballastv1.Revocations{Revocations: []*ballastv1.Revocation{{}, {Serial: "x"}, {Name: "../c1"}, {Serial: strings.Repeat("0", 1<<20)}}})
	if n, _ := credentials.RevokedCount(); n != 0 || len(l.Problems()) != 1 {
		t.Errorf("%d entries, problems %q", n, l.Problems())
	}
	ever := time.Now().Add(100 * 365 * 24 * time.Hour)
	l.Take("thief", &ballastv1.Revocations{Revocations: api.RevocationsToProto([]pki.Revocation{{Name: "c1", At: ever, Ends: ever, Reason: "\x1b[2J"}})})
	if kept := credentials.Revoked(); len(kept) != 1 || kept[0].At.After(time.Now().Add(2*time.Hour)) || kept[0].Ends.Equal(ever) || strings.Contains(kept[0].Reason, "\x1b") {
		t.Errorf("it keeps %v", kept)
	}
	l.Take("thief", list(0, pki.RevokedMax+100))
	l.Take("c2", list(0, 1)) // which it knows; others it lacks still
	if n, _ := credentials.RevokedCount(); n != pki.RevokedMax || !strings.Contains(fmt.Sprint(l.Problems()), "remove "+l.path) {
		t.Errorf("%d entries, problems %q", n, l.Problems())
	}
}

func TestADamagedListIsSaidWithTheRemedy(t *testing.T) {
	ca, dir := fleettest.NewAuthority(t), t.TempDir()
	path := filepath.Join(dir, "lb-revoked.json")
	fleettest.Require(t, os.WriteFile(path, []byte("[{"), 0o600))
	if _, err := Load(ca.Issue(pki.LB, "lb1"), filepath.Join(dir, "state.json"), pki.LB, fleettest.Log(t)); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("%v", err)
	}
}
