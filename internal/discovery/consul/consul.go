// Package consul asks an agent of Consul for the instances of a service, by blocking queries.
package consul

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ballast-lb/ballast/internal/machine/discovery"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	blocking     = 50 * time.Second // that a query waits for a change; Consul adds up to a sixteenth
	answerWithin = 10 * time.Second // besides
	dialTimeout  = 5 * time.Second
	maxAnswer    = 16 << 20        // bytes
	unindexed    = 5 * time.Second // between queries that do not wait for a change
)

// Source is a service of Consul.
type Source struct {
	of           model.ServerSource
	dir          string // of agents
	answerWithin time.Duration

	agent  agent       // that client asks
	client *api.Client // nil: to be made anew
	close  func()
	index  uint64 // that the last answer had; 0: do not wait for a change
}

// New returns what asks for a service; dir is the controller's folder of sources.
func New(of model.ServerSource, dir string) *Source {
	return &Source{of: of, dir: filepath.Join(dir, "consul"), answerWithin: answerWithin}
}

// Ask waits until the service has changed since the last answer, or for a while.
func (s *Source) Ask(ctx context.Context) (answer discovery.Answer, wait time.Duration) {
	entries, index, err := s.query(ctx)
	if err != nil {
		s.reset()
		return discovery.Answer{Err: err}, 0
	}
	if index < s.index { // the servers of Consul were restored
		index = 0
	}
	if s.index = index; index == 0 {
		wait = unindexed
	}
	return found(entries), wait
}

func (s *Source) reset() {
	if s.client != nil {
		s.close()
	}
	s.client, s.index = nil, 0
}

func (s *Source) query(ctx context.Context) ([]*api.ServiceEntry, uint64, error) {
	name := cmp.Or(s.of.Agent, model.DefaultAgent)
	agent, err := readAgent(s.dir, name) // each time: whoever takes it away is obeyed
	if err != nil {
		return nil, 0, err
	}
	if s.client != nil && agent != s.agent {
		s.reset()
	}
	if s.client == nil {
		if err := s.connect(agent); err != nil {
			return nil, 0, fmt.Errorf("agent of Consul %s: %w", name, err)
		}
	}
	options := &api.QueryOptions{Datacenter: s.of.Datacenter, WaitIndex: s.index, WaitTime: blocking}
	if agent.tokenFile != "" { // which may be replaced
		token, err := os.ReadFile(agent.tokenFile)
		if err != nil {
			return nil, 0, fmt.Errorf("agent of Consul %s: %w", name, err)
		}
		options.Token = string(bytes.TrimSpace(token))
	}
	limit := s.answerWithin
	if s.index > 0 {
		limit += blocking + blocking/16
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	entries, meta, err := s.client.Health().Service(s.of.Service, s.of.Tag, false, options.WithContext(ctx))
	if err != nil {
		return nil, 0, fmt.Errorf("agent of Consul %s: %w", name, inShort(err))
	}
	if meta.ResultsFilteredByACLs {
		return nil, 0, fmt.Errorf("agent of Consul %s: the answer lacks what its token may not read: give it service:read and node:read", name)
	}
	return entries, meta.LastIndex, nil
}

// inShort leaves out what a server says of an error: that is not for people who may change the fleet.
func inShort(err error) error {
	status, large := api.StatusError{}, new(http.MaxBytesError)
	switch {
	case errors.As(err, &large):
		return fmt.Errorf("an answer of more than %d bytes", large.Limit)
	case !errors.As(err, &status):
		return err
	case status.Code == http.StatusForbidden:
		return errors.New("status 403: its token needs service:read and node:read")
	}
	return fmt.Errorf("status %d", status.Code)
}

// connect makes a client.
func (s *Source) connect(a agent) error {
	config, err := api.SetupTLSConfig(&api.TLSConfig{CAFile: a.caFile, CertFile: a.certFile, KeyFile: a.keyFile})
	if err != nil {
		return fmt.Errorf("read certificates: %w", err)
	}
	transport := &http.Transport{TLSClientConfig: config, DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext, TLSHandshakeTimeout: dialTimeout, ForceAttemptHTTP2: true}
	client, err := api.NewClient(&api.Config{Address: a.address, HttpClient: &http.Client{
		Transport: limited{transport},
		// A redirection would take the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}})
	if err != nil {
		return err
	}
	s.agent, s.client, s.close = a, client, transport.CloseIdleConnections
	return nil
}

// limited reads no answer that is too large.
type limited struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := l.next.RoundTrip(r)
	if err == nil {
		answer.Body = http.MaxBytesReader(nil, answer.Body, maxAnswer)
	}
	return answer, err
}

// found takes instances by their checks: those that fail get no new connections. Weights are Consul's: that of warnings may be 0.
func found(entries []*api.ServiceEntry) (answer discovery.Answer) {
	for _, entry := range entries {
		if entry == nil || entry.Service == nil {
			continue
		}
		text := entry.Service.Address
		if text == "" && entry.Node != nil {
			text = entry.Node.Address
		}
		address, err := netip.ParseAddr(text)
		if port := entry.Service.Port; err != nil || address.Zone() != "" || port < 0 || port > 65535 {
			answer.Notes = append(answer.Notes, fmt.Sprintf("instance %.60q: %.60q port %d is not an address", entry.Service.ID, text, port))
			continue
		}
		one := discovery.Found{Address: address.Unmap(), Port: uint16(entry.Service.Port)}
		weights := entry.Service.Weights
		if weights == (api.AgentWeights{}) { // before 1.2.3 there are none
			weights = api.AgentWeights{Passing: 1, Warning: 1}
		}
		switch entry.Checks.AggregatedStatus() {
		case api.HealthPassing:
			one.Weight = weight(weights.Passing)
		case api.HealthWarning:
			one.Weight = weight(weights.Warning)
		default:
			one.Weight, one.Draining = weight(weights.Passing), true
		}
		answer.Servers = append(answer.Servers, one)
	}
	return answer
}

func weight(weight int) uint16 { return uint16(min(max(weight, 0), model.MaxWeight)) }
