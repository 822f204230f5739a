package enrol

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
)

func TestTokensAreReadAsTheyWereWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		role := rapid.SampledFrom([]pki.Role{pki.LB, pki.Agent}).Draw(t, "role")
		one := NewToken(role, sha256.Sum256([]byte{rapid.Byte().Draw(t, "root")}), time.Unix(rapid.Int64Range(0, 1<<40).Draw(t, "ends"), 0))
		read, err := ParseToken(" " + one.String() + "\n")
		if err != nil || *read != *one {
			t.Fatalf("%v: %+v of %+v", err, read, one)
		}
	})
}

func TestWhatIsNoWholeTokenIsRefused(t *testing.T) {
	token := NewToken(pki.LB, sha256.Sum256(nil), time.Now()).String()
	for i := range len(token) {
		if _, err := ParseToken(token[:i]); err == nil {
			t.Fatalf("%d characters of %d are taken", i, len(token))
		}
		other := byte('A')
		if token[i] == other {
			other = 'B'
		}
		if _, err := ParseToken(token[:i] + string(other) + token[i+1:]); err == nil {
			t.Fatalf("with another character at %d it is taken", i)
		}
	}
	if _, err := ParseToken(token + "A"); err == nil {
		t.Error("with one more character it is taken")
	}
}

func TestNoLogHasTheSecretOfAToken(t *testing.T) {
	token := NewToken(pki.LB, sha256.Sum256(nil), time.Now())
	var said strings.Builder
	slog.New(slog.NewTextHandler(&said, nil)).Info("joins", "token", token)
	if !strings.Contains(said.String(), token.ID) || strings.Contains(said.String(), token.String()) || strings.Contains(said.String(), fmt.Sprintf("%x", token.Secret)) {
		t.Error(said.String())
	}
}

func TestClocksThatDifferAreNamedWithByHowMuch(t *testing.T) {
	now := time.Now()
	for ahead, wanted := range map[time.Duration]string{0: "", 59 * time.Minute: "", 3 * time.Hour: "3h0m0s ahead of that of controller c1", -26 * time.Hour: "26h0m0s behind that of controller c1"} {
		_, err := compare(now, &ballastv1.JoinGreeting{Controller: "c1", Time: timestamppb.New(now.Add(-ahead))})
		if (wanted == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), wanted) {
			t.Errorf("%v: %v", ahead, err)
		}
	}
	if ahead, err := compare(now, &ballastv1.JoinGreeting{Time: timestamppb.New(now.Add(5 * time.Minute))}); err != nil || ahead.Round(time.Minute) != -5*time.Minute {
		t.Errorf("%v, %v", ahead, err)
	}
}

func TestControllersAreHostsWithPorts(t *testing.T) {
	for _, good := range [][]string{nil, {"10.0.0.21:6443", "[2001:db8::1]:6443", "c1.example-2.com:1"}} {
		if err := checkControllers(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "10.0.0.21", "c1:", ":6443", "c1:x", "c1:70000", "c1:1\n", "c1\nX=1:1", "c1 --options:1", "$(reboot):1", "`x`:1", "c1;x:1", "c1\":1", "-c1:1", "c1,c2:1", "[fe80::1%$(x)]:1"} {
		if checkControllers([]string{"10.0.0.21:6443", bad}) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if checkControllers(slices.Repeat([]string{"c1:1"}, 17)) == nil {
		t.Error("17 are taken")
	}
}
