package daemon_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
)

// consoleMessage is what of a console's messages the test looks at.
type consoleMessage struct {
	Whole bool `json:"whole"`
	Head  *struct {
		Role, Name, Headline string
		Rungs                []string
	} `json:"head"`
	Servers []struct{ Service, Name, State string }
	Point   []float64
}

func TestTheConsoleOfALoadBalancerShowsHowPacketsFindTheirServer(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitAfterStart()
	h.await("a carrier", func(s api.LBStatus) bool { return s.Ready })
	var connection net.Conn
	require(t, h.space.Do(func() (err error) { connection, err = net.Dial("tcp", "127.0.0.1:9440"); return err }))
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprint(connection, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
	lines := bufio.NewReader(connection)
	next := func() (m consoleMessage) {
		t.Helper()
		for {
			line, err := lines.ReadString('\n')
			require(t, err)
			if strings.Contains(line, "000102030405060708090a0b0c0d0e0f") || strings.Contains(line, "00112233445566778899aabbccddeeff") {
				t.Fatal("a key reaches the console")
			}
			if text, ok := strings.CutPrefix(line, "data: "); ok {
				require(t, json.Unmarshal([]byte(text), &m))
				return m
			}
		}
	}
	first := next()
	if !first.Whole || first.Head.Role != "lb" || len(first.Servers) != 2 {
		t.Fatalf("first: %+v, head %+v", first, first.Head)
	}
	headline := first.Head.Headline // the servers' link-layer addresses may not be known yet
	for !strings.HasPrefix(headline, "Nothing is wrong: 2 servers") {
		t.Log(headline)
		if m := next(); m.Head != nil {
			headline = m.Head.Headline
		}
	}
	cookie := 3 + slices.Index(first.Head.Rungs, "cookie")
	h.say(tableClient, 0, false)
	for m := next(); m.Point[cookie] == 0; m = next() {
	}
	h.awaitFile(h.write(strings.Replace(fmt.Sprintf(lbFile, ""), "{name: s1,", "{name: s1, state: draining,", 1)))
	for m := next(); len(m.Servers) == 0; m = next() {
	}
}
