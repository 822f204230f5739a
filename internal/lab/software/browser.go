package software

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/netip"
	"path/filepath"
	"regexp"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Browser is Chromium.
const Browser = "chromium"

const (
	browsedName   = "ballast.test"
	browserWithin = time.Minute
	virtualTime   = 10_000 // that a page takes beyond its answers, in ms
	natForgets    = 700 * time.Millisecond
	// Chromium sends other datagrams as well, which are not translated.
	translatedPort = 443
	natRules       = `table ip lab {
  chain out {
    type nat hook postrouting priority srcnat
    udp dport 443 masquerade random
  }
}`
)

// Browse is a program that loads a page of a service and prints it, over TCP or QUIC.
func Browse(lab *host.Lab, node string, vip netip.Addr, certificate string, quic bool) Program {
	pair := script.Must(tls.LoadX509KeyPair(certificate+".crt", certificate+".key"))
	key := sha256.Sum256(pair.Leaf.RawSubjectPublicKeyInfo)
	home := filepath.Join(lab.NodeDir(node), Browser)
	browser := Program{Node: node, Name: Browser, Environment: []string{"HOME=" + home}, Arguments: []string{
		"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--user-data-dir=" + home, "--host-resolver-rules=MAP " + browsedName + " " + vip.String(),
		"--ignore-certificate-errors-spki-list=" + base64.StdEncoding.EncodeToString(key[:]), "--dump-dom"}}
	if quic {
		browser.Arguments = append(browser.Arguments, "--enable-quic", "--origin-to-force-quic-on="+browsedName+":443")
	} else {
		browser.Arguments = append(browser.Arguments, fmt.Sprintf("--virtual-time-budget=%d", virtualTime))
	}
	browser.Arguments = append(browser.Arguments, "https://"+browsedName+Page)
	return browser
}

// Visit is a client that runs to its end, and then shows in JSON what it was answered.
type Visit struct {
	process *host.Process
	output  host.Transcript
}

// Visit starts a client.
func (p Program) Visit(lab *host.Lab) *Visit {
	v := &Visit{}
	p.Stdout = &v.output
	v.process = p.Start(lab)
	v.process.Wanted.Store(true)
	return v
}

// answers is the JSON that clients print, alone or within a page.
var answers = regexp.MustCompile(`\{.*"(together|protocols)".*\}`)

// End waits until the client has all its answers, and reads them into shown.
func (v *Visit) End(lab *host.Lab, shown any) {
	await.Until(lab.Context, browserWithin, "the browser has loaded the page", func() error {
		if v.process.Died() == nil {
			return errors.New("it is under way")
		}
		return nil
	})
	v.read(shown)
}

// EndBehindNAT is End for a client whose translator of addresses forgets its ports again and again, and returns how
// many ports it has given.
func (v *Visit) EndBehindNAT(lab *host.Lab, shown any) int {
	given := map[uint16]bool{}
	forget, late := time.NewTicker(natForgets), time.After(browserWithin)
	defer forget.Stop()
	for v.process.Died() == nil {
		select {
		case <-forget.C:
			err := lab.Space(v.process.Node).Do(func() error { return forgetPorts(given) })
			script.Checkf(err, "forget translations")
		case <-late:
			v.process.Kill()
		case <-lab.Context.Done():
			script.Check(lab.Context.Err())
		case <-v.process.Exited:
		}
	}
	v.read(shown)
	return len(given)
}

func (v *Visit) read(shown any) {
	found := answers.FindString(html.UnescapeString(v.output.String()))
	if found == "" {
		script.Check(fmt.Errorf("%s shows no answer: %q: %s", v.process, v.output.String(), v.process.LastWords()))
	}
	script.Check(json.Unmarshal([]byte(found), shown))
}

// Translate gives the datagrams that a node sends to QUIC servers other ports.
func Translate(lab *host.Lab, node string) {
	script.Checkf(lab.Run(node, natRules, "nft", "-f", "-"), "translate addresses with nft")
}

// forgetPorts ends the translations of the thread's namespace. It adds the ports that they had.
func forgetPorts(given map[uint16]bool) error {
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
	for _, flow := range flows {
		if flow.Forward.Protocol == unix.IPPROTO_UDP && flow.Forward.DstPort == translatedPort {
			given[flow.Reverse.DstPort] = true
		}
	}
	return errors.Join(err, netlink.ConntrackTableFlush(netlink.ConntrackTable))
}
