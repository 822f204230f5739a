package tlsclient

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/process/stateful"
)

// Header is the response header in which HTTP servers describe a connection: their name, whether it has resumed a session, and the client's
// port.
const Header = "X-Session"

// Answer is a server's description of a connection.
type Answer struct {
	Server    string // empty: not repeated
	Resumed   *bool  // nil: unknown
	Port      string // the client's
	Proxy     string // that the server is behind
	Forgotten bool   // the server does not know the session as it should
}

// protocol is what is sent to servers, and how their answers are read.
type protocol struct {
	request string // that is answered as often as it is sent
	last    string // the same; then the server ends the connection
	read    func(d *dialog, from *bufio.Reader, first bool) (Answer, error)
	answers *regexp.Regexp // in what programs print: server, resumed, port
}

var headers = regexp.MustCompile(`(?mi)^` + Header + `: (\S+) (\S+) (\d+)\r?$`)

// protocols are those of the lab's servers.
var protocols = map[string]*protocol{
	"":      {request: "who\n", read: readLine},
	"http":  {"GET / HTTP/1.1\r\nHost: lab\r\n\r\n", "GET / HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n", readHTTP, headers},
	"imap":  {"a NOOP\r\n", "a LOGOUT\r\n", readIMAP, regexp.MustCompile(`(?m)^\* OK \[.*\] (\S+)()()\r?$`)},
	"state": {read: readState},
}

// dialog is the requests of a session.
type dialog struct {
	*protocol
	client  *client
	cookies map[string]string // with State
	number  int               // connections before this one
	resumes int               // connections after the first
}

func newDialog(c *client) *dialog {
	d := &dialog{protocol: protocols[c.Protocol], client: c, resumes: c.Resumes}
	if c.State != nil {
		if c.State.UpTo > 0 {
			d.resumes = c.random.IntN(c.State.UpTo)
		}
		d.protocol = protocols["state"]
		d.cookies = map[string]string{stateful.SessionCookie: strconv.FormatUint(c.random.Uint64(), 36)}
	}
	return d
}

// ask sends a request, and reads the answer.
func (d *dialog) ask(to io.Writer, from *bufio.Reader, first bool) (Answer, error) {
	request := d.request
	if d.cookies != nil {
		request = d.stateRequest()
	}
	if _, err := io.WriteString(to, request); err != nil {
		return Answer{}, fmt.Errorf("write: %w", withoutPorts(err))
	}
	got, err := d.read(d, from, first)
	if err != nil {
		return Answer{}, fmt.Errorf("read: %w", withoutPorts(err))
	}
	return got, nil
}

func (d *dialog) stateRequest() string {
	url := fmt.Sprintf("/?bytes=%d", d.client.State.Bytes)
	if d.number == d.resumes {
		url += "&last=1"
	}
	var sent []string
	for name, value := range d.cookies {
		sent = append(sent, name+"="+value)
	}
	return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: lab\r\nCookie: %s\r\n\r\n", url, strings.Join(sent, "; "))
}

func readState(d *dialog, from *bufio.Reader, _ bool) (Answer, error) {
	response, err := readResponse(from)
	if err != nil {
		return Answer{}, err
	}
	if response.StatusCode != http.StatusOK {
		return Answer{}, errors.New(response.Status)
	}
	for _, cookie := range response.Cookies() {
		d.cookies[cookie.Name] = cookie.Value
	}
	return Answer{Server: response.Header.Get(stateful.ServerHeader), Proxy: response.Header.Get(stateful.ProxyHeader),
		Forgotten: response.Header.Get(stateful.CountHeader) != strconv.Itoa(d.number+1)}, nil
}

// withoutPorts removes the addresses from an error of a socket, so that errors can be counted.
func withoutPorts(err error) error {
	if within := errors.Unwrap(err); within != nil {
		return within
	}
	return err
}

func readLine(_ *dialog, from *bufio.Reader, _ bool) (Answer, error) {
	line, err := from.ReadString('\n')
	return Answer{Server: strings.TrimSpace(line)}, err
}

func readHTTP(_ *dialog, from *bufio.Reader, _ bool) (Answer, error) {
	response, err := readResponse(from)
	if err != nil {
		return Answer{}, err
	}
	return ReadHeader(response.Header.Get(Header))
}

// readResponse reads a response to the end of its body.
func readResponse(from *bufio.Reader) (*http.Response, error) {
	response, err := http.ReadResponse(from, nil)
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
	}
	return response, err
}

// ReadHeader reads an answer of HTTP servers.
func ReadHeader(value string) (Answer, error) {
	return (&protocol{answers: headers}).answer(Header + ": " + value)
}

// readIMAP reads a greeting, which names the server, in each connection once.
func readIMAP(d *dialog, from *bufio.Reader, first bool) (got Answer, err error) {
	for {
		line, err := from.ReadString('\n')
		switch {
		case err != nil:
			return got, err
		case strings.HasPrefix(line, "a OK"):
			return got, nil
		case first && strings.HasPrefix(line, "* OK Waiting"): // for Dovecot's other processes
		case first && got.Server == "":
			if got, err = d.answer(strings.TrimRight(line, "\r\n")); err != nil {
				return got, err
			}
		default:
			return got, fmt.Errorf("%q", line)
		}
	}
}

// resumedWords are those of nginx, Apache and HAProxy.
var resumedWords = map[string]bool{"r": true, ".": false, "Resumed": true, "Initial": false, "1": true, "0": false}

// answer finds the one answer in a text.
func (p *protocol) answer(text string) (Answer, error) {
	all, err := p.all(text)
	if err == nil && (len(all) == 0 || all[0].Server != all[len(all)-1].Server || all[0].Port != all[len(all)-1].Port) {
		err = fmt.Errorf("%d answers in %q", len(all), text)
	}
	if err != nil {
		return Answer{}, err
	}
	return all[0], nil
}

// all finds the answers in what a program has printed.
func (p *protocol) all(text string) (all []Answer, err error) {
	for _, found := range p.answers.FindAllStringSubmatch(text, -1) {
		got := Answer{Server: found[1], Port: found[3]}
		if found[2] != "" {
			resumed, known := resumedWords[found[2]]
			if !known {
				return nil, fmt.Errorf("the server says %q", found[0])
			}
			got.Resumed = &resumed
		}
		all = append(all, got)
	}
	return all, nil
}
