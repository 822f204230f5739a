package poll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/stagger"
)

// Implementation constants.
const (
	mostBytes    = 4096 // of an answer
	mostHeader   = 8 << 10
	defaultMost  = 1024 // polls under way: each that is not answered takes its place for a whole interval
	leastTimeout = 100 * time.Millisecond
	mostTimeout  = time.Second
	idleTimeout  = time.Minute // of connections between polls
)

// Target is an endpoint that is asked about one server.
type Target struct {
	Service  string
	ID       uint16 // of the server
	URL      string // see URL
	Interval time.Duration
}

// Result is what one poll brought.
type Result struct {
	Service  string
	ID       uint16
	URL      string
	Status   Status
	Answered uint64 // requests since the last answer of this target; 0 in the first
	Failed   uint64 // likewise
	Err      error  // names the URL; there is no Status then
}

// Options configure a Poller.
type Options struct {
	// Report takes results, from several goroutines at once. A target is not asked again before it returns.
	Report func(Result)
	Most   int // polls that may be under way at once; 0: 1024
	// Transport asks; nil: one without proxies that keeps a connection to each server.
	Transport http.RoundTripper
}

// URL returns the address to ask about a server. An endpoint without a host, http://:8080/load, is asked of the server itself. One
// with a host is asked for all servers of the service and told which by the parameter server.
func URL(endpoint string, server netip.Addr) (string, error) {
	at, err := url.Parse(endpoint)
	if err != nil || (at.Scheme != "http" && at.Scheme != "https") || at.Host == "" {
		return "", fmt.Errorf("poll %q: it is not an HTTP URL: write it like http://:8080/load", endpoint)
	}
	if at.Hostname() == "" {
		host := server.String()
		if server.Is6() {
			host = "[" + host + "]"
		}
		at.Host = host + strings.TrimSuffix(at.Host, ":")
		return at.String(), nil
	}
	query := at.Query()
	query.Set("server", server.String())
	at.RawQuery = query.Encode()
	return at.String(), nil
}

// Poller asks many endpoints, each once at a random time in each of its intervals, so that neither they nor their answers come in
// step (Spotlight V-C). It never asks one again before it has answered or failed to in time: within its interval, but 100 ms
// at least and 1 s at most.
type Poller struct {
	options Options
	client  http.Client
	slots   chan struct{}

	mu      sync.Mutex
	ctx     context.Context // nil before Run
	targets map[key]*running
	done    sync.WaitGroup
}

type key struct {
	service string
	id      uint16
}

// running is a target that is being polled.
type running struct {
	Target
	stop context.CancelFunc // nil before Run
}

// New returns a poller without targets. It asks nothing before Run.
func New(o Options) *Poller {
	if o.Most <= 0 {
		o.Most = defaultMost
	}
	if o.Transport == nil {
		o.Transport = &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: idleTimeout, MaxResponseHeaderBytes: mostHeader,
			DisableCompression: true}
	}
	return &Poller{options: o, slots: make(chan struct{}, o.Most), targets: make(map[key]*running), client: http.Client{
		Transport:     o.Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Set says what is to be polled; it replaces the targets before. Those that stay as they are go on as they were.
func (p *Poller) Set(targets []Target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := make(map[key]*running, len(targets))
	for _, target := range targets {
		k := key{target.Service, target.ID}
		if old := p.targets[k]; old != nil && old.Target == target {
			next[k] = old
		} else if next[k] == nil {
			next[k] = &running{Target: target}
		}
	}
	for k, old := range p.targets {
		if next[k] != old && old.stop != nil {
			old.stop()
		}
	}
	p.targets = next
	p.launch()
}

// Run polls until ctx ends, and returns when no poll is under way any more.
func (p *Poller) Run(ctx context.Context) {
	p.mu.Lock()
	p.ctx = ctx
	p.launch()
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock() // no launch is under way, and none comes
	p.ctx = nil
	p.mu.Unlock()
	p.done.Wait()
	p.client.CloseIdleConnections()
}

// launch begins to poll what is not being polled yet.
func (p *Poller) launch() {
	if p.ctx == nil || p.ctx.Err() != nil {
		return
	}
	for _, r := range p.targets {
		if r.stop == nil {
			var ctx context.Context
			ctx, r.stop = context.WithCancel(p.ctx)
			p.done.Go(func() { p.follow(ctx, r.Target) })
		}
	}
}

// follow polls one target until ctx ends.
func (p *Poller) follow(ctx context.Context, t Target) {
	var last *Status
	timer := time.NewTimer(0)
	defer timer.Stop()
	for plan := stagger.New(time.Now(), t.Interval, rand.Float64()); ; plan.Next(time.Now(), t.Interval, rand.Float64()) {
		timer.Reset(time.Until(plan.At))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		select {
		case <-ctx.Done():
			return
		case p.slots <- struct{}{}:
		}
		status, err := p.ask(ctx, t)
		<-p.slots
		if ctx.Err() != nil {
			return
		}
		result := Result{Service: t.Service, ID: t.ID, URL: t.URL, Status: status, Err: err}
		if err == nil {
			result.Answered, result.Failed = since(last, &status)
			last = &status
		}
		p.options.Report(result)
	}
}

// since returns what was answered and failed between two answers.
func since(last, now *Status) (answered, failed uint64) {
	switch {
	case last == nil:
		return 0, 0
	case now.Answered < last.Answered || now.Failed < last.Failed: // the application has started anew
		return now.Answered, now.Failed
	default:
		return now.Answered - last.Answered, now.Failed - last.Failed
	}
}

// ask polls a target once.
func (p *Poller) ask(ctx context.Context, t Target) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, min(max(t.Interval, leastTimeout), mostTimeout))
	defer cancel()
	status, err := p.get(ctx, t.URL)
	if err != nil {
		shown := t.URL
		if at, err := url.Parse(t.URL); err == nil {
			shown = at.Redacted()
		}
		var wrapped *url.Error // says the URL, too
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return Status{}, fmt.Errorf("poll %s: %w", shown, err)
	}
	return status, nil
}

func (p *Poller) get(ctx context.Context, address string) (Status, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return Status{}, err
	}
	request.Header.Set("User-Agent", "ballast")
	response, err := p.client.Do(request)
	if err != nil {
		return Status{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return Status{}, fmt.Errorf("the answer is %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, mostBytes+1))
	if err != nil {
		return Status{}, fmt.Errorf("read the answer: %w", err)
	}
	if len(body) > mostBytes {
		return Status{}, fmt.Errorf("the answer is longer than %d bytes", mostBytes)
	}
	return parse(body)
}
