// A browser that makes TLS connections of its own.
package world

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"path/filepath"
	"regexp"

	"github.com/ballast-lb/ballast/internal/lab/process/session"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Visited is what a browser has seen. Each request was a connection.
type Visited struct {
	Alone    Visits // connections one after another
	Together Visits // several at once: a browser shows each ticket once, and has not one for each
	Failed   int    // requests
}

// Visits are connections.
type Visits struct {
	Connections, Resumed int
	Servers              map[string]int
}

// Visiting is a browser under way.
type Visiting struct {
	trial *Trial
	p     *Process
	said  transcript
}

// virtualTime is what a page takes beyond its answers, in ms.
const virtualTime = 10_000

// browserArguments are those that keep Chromium to the lab.
func (t *Trial) browserArguments(home, certificate string) []string {
	pair := script.Must(tls.LoadX509KeyPair(certificate+".crt", certificate+".key"))
	key := sha256.Sum256(pair.Leaf.RawSubjectPublicKeyInfo)
	return []string{
		"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--user-data-dir=" + home, "--host-resolver-rules=MAP " + browsedName + " " + t.Fleet.Services[0].VIP.String(),
		"--ignore-certificate-errors-spki-list=" + base64.StdEncoding.EncodeToString(key[:])}
}

// Visit has Chromium load the page of the trial's nginx.
func (t *Trial) Visit(certificate string) *Visiting {
	v := &Visiting{trial: t}
	home := filepath.Join(t.NodeDir(ClientNode), Browser)
	v.p = script.Must(t.Start(Spawn{Node: ClientNode, Program: Browser, environment: []string{"HOME=" + home}, Stdout: &v.said,
		Arguments: append(t.browserArguments(home, certificate), fmt.Sprintf("--virtual-time-budget=%d", virtualTime), "--dump-dom", "https://"+browsedName+Page)}))
	v.p.wanted.Store(true)
	return v
}

// visited finds what the page shows.
var visited = regexp.MustCompile(`\{.*"together".*\}`)

// End waits until the page has all its answers.
func (v *Visiting) End() Visited {
	Await(v.trial.Context, browserWithin, "the browser has loaded the page", func() error {
		select {
		case <-v.p.Exited:
			return nil
		default:
			return errors.New("it is under way")
		}
	})
	found := visited.FindString(html.UnescapeString(v.said.String()))
	if found == "" {
		script.Check(fmt.Errorf("%s shows no answer: %q: %s", v.p, v.said.String(), v.p.LastWords()))
	}
	var shown struct {
		Alone, Together []string
		Failed          int
	}
	script.Check(json.Unmarshal([]byte(found), &shown))
	if len(shown.Alone) > 0 { // it may be by a connection that Chromium has opened beside that of the page
		shown.Alone = shown.Alone[1:]
	}
	return Visited{visits(shown.Alone), visits(shown.Together), shown.Failed}
}

func visits(answers []string) Visits {
	seen := Visits{len(answers), 0, map[string]int{}}
	for _, answer := range answers {
		now := script.Must(session.ReadHeader(answer))
		seen.Servers[now.Server]++
		if *now.Resumed {
			seen.Resumed++
		}
	}
	return seen
}
