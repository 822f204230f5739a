package enrol

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
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
