// Clients that are not ours, behind a translator of addresses that forgets.
package world

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/lab/process/http3"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Browser is its program.
const Browser = "chromium"

const (
	browsedName   = "ballast.test"
	browserWithin = time.Minute
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

// Browsed is what a client has told of its requests, or its connections.
type Browsed struct {
	Servers   []string `json:"servers"`
	Protocols []string `json:"protocols"` // as ALPN names them
	Failed    int      `json:"failed"`
	Ports     int      `json:"-"` // that the translator has given
}

// answered finds what the page has told.
var answered = regexp.MustCompile(`\{.*"protocols".*\}`)

// Browse starts HTTP/3 servers, and has Chromium load their page.
func (t *Trial) Browse() Browsed {
	certificate := t.certificate()
	t.startHTTP3(http3.Options{Certificate: certificate})
	home := filepath.Join(t.NodeDir(ClientNode), Browser)
	return t.behindNAT(Spawn{Program: Browser, environment: []string{"HOME=" + home}, Arguments: append(t.browserArguments(home, certificate),
		"--enable-quic", "--origin-to-force-quic-on="+browsedName+":443", "--dump-dom", "https://"+browsedName+"/page")})
}

// DownloadByAioquic starts HTTP/3 servers and test/aioquic-client.py.
func (t *Trial) DownloadByAioquic(program string) Browsed {
	t.StartHTTP3(false)
	return t.behindNAT(Spawn{Program: program, Arguments: []string{t.Target()}})
}

// behindNAT runs a client while a translator forgets its ports again and again.
func (t *Trial) behindNAT(client Spawn) (browsed Browsed) {
	nat := exec.Command("nft", "-f", "-")
	nat.Stdin = strings.NewReader(natRules)
	script.Checkf(errors.Join(t.Space(ClientNode).Start(nat), nat.Wait()), "translate addresses with nft")
	var said transcript
	client.Node, client.Stdout = ClientNode, &said
	p := script.Must(t.Start(client))
	p.wanted.Store(true)
	given := map[uint16]bool{}
	forget, late := time.NewTicker(natForgets), time.After(browserWithin)
	defer forget.Stop()
	for {
		select {
		case <-forget.C:
			script.Checkf(t.Space(ClientNode).Do(func() error { return forgetPorts(given) }), "forget translations")
			browsed.Ports = len(given)
			continue
		case <-late:
			p.Kill()
		case <-t.Context.Done():
			script.Check(t.Context.Err())
		case <-p.Exited:
		}
		break
	}
	found := answered.FindString(html.UnescapeString(said.String()))
	if found == "" {
		script.Check(fmt.Errorf("%s shows no answer: %q: %s", p, said.String(), p.LastWords()))
	}
	script.Check(json.Unmarshal([]byte(found), &browsed))
	return browsed
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
