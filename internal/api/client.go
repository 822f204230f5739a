package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"

	"connectrpc.com/connect"
)

// A Client asks the daemon that serves one socket. It is safe for concurrent use.
type Client struct {
	path string
	http http.Client
}

// NewClient does not connect yet.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	// Without keep-alive a client needs no Close, and a daemon's restart leaves no dead connection behind.
	return &Client{path: path, http: http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Get decodes the answer to a GET into answer.
func (c *Client) Get(ctx context.Context, path string, answer any) error {
	return c.Do(ctx, http.MethodGet, path, nil, answer)
}

// Do is any method. What the daemon refuses comes back as *Error.
func (c *Client) Do(ctx context.Context, method, path string, body, answer any) error {
	response, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if answer == nil {
		return nil
	}
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		return fmt.Errorf("decode the answer to %s %s: %w", method, path, err)
	}
	return nil
}

// Stream is a GET whose answer is read as it comes. The caller closes it.
func (c *Client) Stream(ctx context.Context, path string) (io.ReadCloser, error) {
	response, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// Status asks for PathStatus.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var status Status
	err := c.Get(ctx, PathStatus, &status)
	return status, err
}

// Counters asks for PathCounters.
func (c *Client) Counters(ctx context.Context) (map[string]uint64, error) {
	var counters Counters
	err := c.Get(ctx, PathCounters, &counters)
	return counters.Counters, err
}

// unreached is what is said when the daemon does not answer.
func (c *Client) unreached(err error) string {
	hint := "is it running, and is this its --instance?"
	if why := ended(c.path); why != "" {
		hint = why
	}
	if errors.Is(err, fs.ErrPermission) {
		hint = "run this as root"
	}
	return fmt.Sprintf("reach the daemon at %s: %s: %s", c.path, err, hint)
}

func (c *Client) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://ballast"+path, content)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok { // it says the URL, too
			err = wrapped.Err
		}
		if method != http.MethodGet && !unsent(err) {
			return nil, outcomeUnknown(err, "look before you repeat it")
		}
		return nil, plainError{connect.NewError(connect.CodeUnavailable, err), c.unreached(err)}
	}
	if response.StatusCode < 300 {
		return response, nil
	}
	defer response.Body.Close()
	refused := &Error{Code: response.StatusCode}
	if json.NewDecoder(response.Body).Decode(refused) != nil || refused.Message == "" {
		refused.Message = method + " " + path + ": " + response.Status
	}
	return nil, refused
}
