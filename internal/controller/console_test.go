package controller

import (
	"bufio"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
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
	transport := &http.Transport{TLSClientConfig: ca.Issue(pki.Ctl, "bob").Client()}
	t.Cleanup(transport.CloseIdleConnections)
	bob := ballastv1connect.NewFleetClient(&http.Client{Transport: transport}, "https://"+c.address, api.WithComment("<img src=x onerror=alert(1)>"))
	_, err = bob.UndrainServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: "s2"})
	fleettest.Require(t, err)
	awaitText(`"comment":"\u003cimg src=x onerror=alert(1)\u003e"`, `"by":"bob (ctl)"`, `"from":"127.0.0.1`)
	changes, err := operator.ListChanges(t.Context(), &ballastv1.ListChangesRequest{})
	fleettest.Require(t, err)
	drained := changes.Changes[len(changes.Changes)-2]
	for query, want := range map[string]string{
		fmt.Sprintf("from=%d&to=0", drained.Revision): "server s2: state draining -> active", // as `ballast ctl fleet diff` says it
		fmt.Sprintf("from=0&to=%d", drained.Revision): "server s2: state active -> draining", // and what a rollback would change
		"from=0&to=0":  `{"changes":[]}`,
		"from=1&to=99": "the history has no revision 1",
	} {
		answer, err := http.Get("http://" + address + "/diff?" + query)
		fleettest.Require(t, err)
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if !strings.Contains(string(text), strings.ReplaceAll(want, ">", `\u003e`)) || strings.Contains(string(text), "keys:") {
			t.Errorf("%s: %s %s, want %q", query, answer.Status, text, want)
		}
	}
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
