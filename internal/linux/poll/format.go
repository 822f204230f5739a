// Package poll asks applications how busy they are: an HTTP endpoint of each server, at random times (Spotlight V-B, V-C).
//
// # What an endpoint answers
//
// A GET request is answered with status 200 and at most 4096 bytes in one of three formats, told apart by how they begin.
//
// JSON, one object:
//
//	{"outstanding": 12, "capacity": 256, "answered": 81234, "failed": 17, "cpu": 0.35}
//
// Plain, a line for each of the same names; empty lines and lines that begin with # are skipped:
//
//	outstanding 12
//	capacity 256
//	answered 81234
//	failed 17
//	cpu 0.35
//
// nginx's stub_status, as it is. Outstanding is Active less Waiting, less the request that asks; requests are answered,
// and connections that were accepted but not handled have failed:
//
//	Active connections: 291
//	server accepts handled requests
//	 16630948 16630940 31070465
//	Reading: 6 Writing: 179 Waiting: 106
//
// The names mean:
//
//	outstanding  requests that are being worked on or wait, now or on average of late; a number, 0 or more
//	capacity     requests that the server can hold before it refuses more; optional, above 0; without it, the service's
//	             queue_limit times the server's weight
//	answered     requests answered well since the application started; optional, a whole number
//	failed       requests answered with an error, or not at all, likewise
//	cpu          part of the CPU in use, from 0 to 1; optional, and needed only where outstanding is not known
//
// One of outstanding and cpu is required. Other names, names given twice and anything that is no number are errors: what is
// misspelt would otherwise pass for nothing to do. Counters that fall mean that the application has started anew.
package poll

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// Status is what an application says about itself.
type Status struct {
	HasOutstanding bool
	Outstanding    float64 // requests
	Capacity       float64 // requests that it can hold; 0: not said
	HasCPU         bool
	CPU            float64 // 0 to 1
	Answered       uint64  // since it started
	Failed         uint64
}

// parse reads an answer in any of the formats.
func parse(body []byte) (Status, error) {
	text := strings.TrimSpace(string(body))
	switch {
	case text == "":
		return Status{}, errors.New("the answer is empty")
	case strings.HasPrefix(text, "{"):
		return parseJSON(body)
	case strings.HasPrefix(text, "Active connections:"):
		return parseStub(text)
	default:
		return parsePlain(text)
	}
}

func parseJSON(body []byte) (Status, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	values := newValues()
	for depth := 0; ; {
		token, err := decoder.Token()
		if err != nil {
			return Status{}, fmt.Errorf("the answer is not JSON: %w", err)
		}
		switch token := token.(type) {
		case json.Delim:
			if token == '{' && depth == 0 {
				depth++
				continue
			}
			if token != '}' {
				return Status{}, fmt.Errorf("the answer has %q in it: it is to be one object of numbers", token)
			}
			if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
				return Status{}, errors.New("the answer goes on after the object")
			}
			return values.status()
		case string: // a name: values are taken below
			value, err := decoder.Token()
			if err != nil {
				return Status{}, fmt.Errorf("the answer is not JSON: %w", err)
			}
			number, ok := value.(json.Number)
			if !ok {
				return Status{}, fmt.Errorf("%q of the answer is no number", shorten(token))
			}
			if err := values.set(token, number.String()); err != nil {
				return Status{}, err
			}
		}
	}
}

func parsePlain(text string) (Status, error) {
	values := newValues()
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 2 {
			return Status{}, fmt.Errorf("line %q of the answer is not a name and a number", shorten(line))
		}
		if err := values.set(fields[0], fields[1]); err != nil {
			return Status{}, err
		}
	}
	return values.status()
}

// parseStub reads the answer of ngx_http_stub_status_module.
func parseStub(text string) (Status, error) {
	var active, waiting, accepts, handled, requests, reading, writing uint64
	var rest string
	n, err := fmt.Sscanf(strings.Join(strings.Fields(text), " ")+" end",
		"Active connections: %d server accepts handled requests %d %d %d Reading: %d Writing: %d Waiting: %d %s",
		&active, &accepts, &handled, &requests, &reading, &writing, &waiting, &rest)
	if err != nil || n != 8 || rest != "end" {
		return Status{}, fmt.Errorf("the answer %q is not that of nginx's stub_status", shorten(text))
	}
	busy := max(active, waiting+1) - waiting - 1 // the request that asks is one of the active ones
	return Status{HasOutstanding: true, Outstanding: float64(busy), Answered: requests, Failed: max(accepts, handled) - handled}, nil
}

// values are the numbers of an answer by name.
type values struct {
	Status
	seen map[string]bool
}

func newValues() *values { return &values{seen: make(map[string]bool)} }

func (v *values) set(name, text string) (err error) {
	if v.seen[name] {
		return fmt.Errorf("%q is given twice", name)
	}
	v.seen[name] = true
	switch name {
	case "outstanding":
		v.HasOutstanding = true
		v.Outstanding, err = number(text, math.MaxUint32)
	case "capacity":
		if v.Capacity, err = number(text, math.MaxUint32); err == nil && v.Capacity == 0 {
			err = errors.New("it has to be above 0")
		}
	case "cpu":
		v.HasCPU = true
		v.CPU, err = number(text, 1)
	case "answered":
		v.Answered, err = counter(text)
	case "failed":
		v.Failed, err = counter(text)
	default:
		return fmt.Errorf("the answer has the unknown name %q: the names are outstanding, capacity, answered, failed and cpu", shorten(name))
	}
	if err != nil {
		return fmt.Errorf("%s is %q: %w", name, shorten(text), err)
	}
	return nil
}

func number(text string, most float64) (float64, error) {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || !(value >= 0 && value <= most) {
		return 0, fmt.Errorf("it has to be a number from 0 to %.0f", most)
	}
	return value, nil
}

func counter(text string) (uint64, error) {
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, errors.New("it has to be a whole number, 0 or more")
	}
	return value, nil
}

func (v *values) status() (Status, error) {
	if !v.HasOutstanding && !v.HasCPU {
		return Status{}, errors.New("the answer has neither outstanding nor cpu")
	}
	return v.Status, nil
}

// shorten keeps what others sent from filling logs.
func shorten(text string) string {
	const most = 64
	if len(text) <= most {
		return text
	}
	return text[:most] + "..."
}
