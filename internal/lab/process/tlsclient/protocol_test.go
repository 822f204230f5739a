package tlsclient

import (
	"bufio"
	"strings"
	"testing"
)

func TestAnswersAreFoundInWhatProgramsPrint(t *testing.T) {
	yes, no := true, false
	for _, one := range []struct {
		protocol, text string
		want           []Answer
	}{
		{"http", "HTTP/1.1 200 OK\r\nServer: nginx\r\nX-Session: s1 r 40000\r\n\r\ns1\n", []Answer{{Server: "s1", Resumed: &yes, Port: "40000"}}},
		{"http", "x-session: s2 Initial 1\r\n\r\nHTTP/1.1 200\r\nx-session: s2 1 2\r\n", []Answer{{Server: "s2", Resumed: &no, Port: "1"}, {Server: "s2", Resumed: &yes, Port: "2"}}},
		{"http", "HTTP/1.1 400 Bad request\r\n\r\n", nil},
		{"imap", "read R BLOCK\n* OK [CAPABILITY IMAP4rev1 ID] s3\r\n* BYE Logging out\r\n", []Answer{{Server: "s3"}}},
		{"imap", "* OK Waiting for authentication process to respond..\r\n* OK [CAPABILITY IMAP4rev1] s3\r\n", []Answer{{Server: "s3"}}},
	} {
		got, err := protocols[one.protocol].all(one.text)
		if err != nil || len(got) != len(one.want) {
			t.Errorf("%q: %v, %v", one.text, got, err)
			continue
		}
		for i, want := range one.want {
			if got[i].Server != want.Server || got[i].Port != want.Port || (got[i].Resumed == nil) != (want.Resumed == nil) || want.Resumed != nil && *got[i].Resumed != *want.Resumed {
				t.Errorf("%q: %+v", one.text, got[i])
			}
		}
	}
	if got, err := protocols["http"].all("X-Session: s1 perhaps 40000\r\n"); err == nil {
		t.Errorf("%v", got)
	}
}

func TestAnIMAPServerSaysItsNameInItsGreetingAlone(t *testing.T) {
	from := bufio.NewReader(strings.NewReader("* OK Waiting for authentication process to respond..\r\n* OK [CAPABILITY IMAP4rev1] s1\r\na OK NOOP completed.\r\na OK NOOP completed.\r\n* BYE\r\n"))
	var to strings.Builder
	imap := newDialog(&client{group: &group{Group: &Group{Protocol: "imap"}}})
	first, err := imap.ask(&to, from, true)
	if err != nil || first.Server != "s1" {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := imap.ask(&to, from, false); err != nil || again.Server != "" {
		t.Fatalf("%+v, %v", again, err)
	}
	if ended, err := imap.ask(&to, from, false); err == nil {
		t.Fatalf("%+v", ended)
	}
}
