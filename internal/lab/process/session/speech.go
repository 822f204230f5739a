package session

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
)

// Header is what HTTP servers say about a connection: their name, whether it has resumed a session, and the client's port.
const Header = "X-Session"

// Answer is what a server says about a connection.
type Answer struct {
	Server  string // empty: it does not say so again
	Resumed *bool  // nil: it does not say
	Port    string // the client's
}

// speech is what a server speaks.
type speech struct {
	question string // that is answered as often as it is asked
	last     string // the same; then the server ends the connection
	read     func(s *speech, said *bufio.Reader, first bool) (Answer, error)
	answers  *regexp.Regexp // in what programs print: server, resumed, port
}

var headers = regexp.MustCompile(`(?mi)^` + Header + `: (\S+) (\S+) (\d+)\r?$`)

// Speeches are those that the lab's servers speak.
var Speeches = map[string]*speech{
	"":     {question: "who\n", read: readLine},
	"http": {"GET / HTTP/1.1\r\nHost: lab\r\n\r\n", "GET / HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n", readHTTP, headers},
	"imap": {"a NOOP\r\n", "a LOGOUT\r\n", readIMAP, regexp.MustCompile(`(?m)^\* OK \[.*\] (\S+)()()\r?$`)},
}

// ask asks, and reads the answer.
func (s *speech) ask(to io.Writer, said *bufio.Reader, first bool) (Answer, error) {
	if _, err := io.WriteString(to, s.question); err != nil {
		return Answer{}, fmt.Errorf("write: %w", withoutPorts(err))
	}
	got, err := s.read(s, said, first)
	if err != nil {
		return Answer{}, fmt.Errorf("read: %w", withoutPorts(err))
	}
	return got, nil
}

// withoutPorts is what an error of a socket says but for its addresses, so that errors can be counted.
func withoutPorts(err error) error {
	if within := errors.Unwrap(err); within != nil {
		return within
	}
	return err
}

func readLine(_ *speech, said *bufio.Reader, _ bool) (Answer, error) {
	line, err := said.ReadString('\n')
	return Answer{Server: strings.TrimSpace(line)}, err
}

func readHTTP(s *speech, said *bufio.Reader, _ bool) (Answer, error) {
	response, err := http.ReadResponse(said, nil)
	if err != nil {
		return Answer{}, err
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return Answer{}, err
	}
	return ReadHeader(response.Header.Get(Header))
}

// ReadHeader reads an answer of HTTP servers.
func ReadHeader(value string) (Answer, error) {
	return (&speech{answers: headers}).answer(Header + ": " + value)
}

// readIMAP reads a greeting, which names the server, in each connection once.
func readIMAP(s *speech, said *bufio.Reader, first bool) (got Answer, err error) {
	for {
		line, err := said.ReadString('\n')
		switch {
		case err != nil:
			return got, err
		case strings.HasPrefix(line, "a OK"):
			return got, nil
		case first && strings.HasPrefix(line, "* OK Waiting"): // for Dovecot's other processes
		case first && got.Server == "":
			if got, err = s.answer(strings.TrimRight(line, "\r\n")); err != nil {
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
func (s *speech) answer(text string) (Answer, error) {
	all, err := s.all(text)
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("%d answers in %q", len(all), text)
	}
	if err != nil {
		return Answer{}, err
	}
	return all[0], nil
}

// all finds the answers in what a program has printed.
func (s *speech) all(text string) (all []Answer, err error) {
	for _, found := range s.answers.FindAllStringSubmatch(text, -1) {
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
