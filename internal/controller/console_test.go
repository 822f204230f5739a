package controller

import (
	"bufio"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

func TestTheConsoleOfAControllerShowsChangesAndNoKeys(t *testing.T) {
	ca, address := fleettest.NewAuthority(t), freeAddress(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), func(o *Options) { o.Console = address })
	operator := c.client(ca.Issue(pki.Ctl, "alice"))
	apply(t, operator, fleettest.Service("web", 1, 2))
	secret := []byte("a secret of a key that is long")[:16]
	_, err := operator.AddKey(t.Context(), &ballastv1.AddKeyRequest{Secret: secret})
	fleettest.Require(t, err)
	answer, err := http.Get("http://" + address + "/events")
	fleettest.Require(t, err)
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	awaitText := func(wanted ...string) { // in what is sent from now on
		t.Helper()
		defer time.AfterFunc(fleettest.Deadline, func() { answer.Body.Close() }).Stop()
		for text := ""; ; text += lines.Text() {
			missing := slices.DeleteFunc(slices.Clone(wanted), func(part string) bool { return strings.Contains(text, part) })
			for _, form := range []string{string(secret), hex.EncodeToString(secret), base64.StdEncoding.EncodeToString(secret)} {
				if strings.Contains(text, form) {
					t.Fatal("a key reaches the console")
				}
			}
			if len(missing) == 0 {
				return
			}
			if !lines.Scan() {
				t.Fatalf("the stream ends without %q: %v", missing, lines.Err())
			}
		}
	}
	awaitText(`"name":"s2"`, `"by":"alice (ctl)"`, "service web: added")
	_, err = operator.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "s2"})
	fleettest.Require(t, err)
	awaitText(`"state":"draining"`, "server s2: state active")
}

func TestAConsoleThatEverybodyCouldReachNeedsACertificateOrAToken(t *testing.T) {
	ca, address := fleettest.NewAuthority(t), freeAddress(t)
	_, port, _ := strings.Cut(address, ":")
	startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), func(o *Options) { o.Console = ":" + port })
	ask := func(client *http.Client, want int) {
		t.Helper()
		answer, err := client.Get("https://" + address + "/")
		fleettest.Require(t, err)
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s, want %d", answer.Status, want)
		}
	}
	with := ca.Issue(pki.Ctl, "alice").Client()
	without := with.Clone()
	without.GetClientCertificate = nil
	ask(&http.Client{Transport: &http.Transport{TLSClientConfig: with, DisableKeepAlives: true}}, http.StatusOK)
	ask(&http.Client{Transport: &http.Transport{TLSClientConfig: without, DisableKeepAlives: true}}, http.StatusForbidden)
}
