package discoverytest

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// Consul is an agent of Consul, as far as blocking queries for the health of one service go.
type Consul struct {
	URL string

	mutex   sync.Mutex
	entries []*api.ServiceEntry
	index   uint64
	token   string // that it wants; empty: none
	change  func(w http.ResponseWriter, r *http.Request) (done bool)
	changed chan struct{} // closed then
	queries []*http.Request
}

// NewConsul returns one without instances, until the test ends. listen is host:port, which has to be free.
func NewConsul(t testing.TB, listen string) *Consul {
	t.Helper()
	c := &Consul{index: 7, changed: make(chan struct{})}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	c.URL = "http://" + listener.Addr().String()
	server := &http.Server{Handler: http.HandlerFunc(c.serve)}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return c
}

// Allow writes what a controller's host says of an agent of that name below a folder of sources.
func (c *Consul) Allow(t testing.TB, dir, name, more string) {
	t.Helper()
	Write(t, filepath.Join(dir, "consul", name+".yaml"), "address: "+c.URL+"\n"+more)
}

// Write writes a file as a whole, and the folder that it is in.
func Write(t testing.TB, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path+".new", []byte(text), 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Instance is one at an address whose check has a state, of weights 3 and, while its check warns, 1.
func Instance(address string, port int, state string) *api.ServiceEntry {
	return &api.ServiceEntry{Node: &api.Node{Node: "node", Address: "192.0.2.1"}, Service: &api.AgentService{ID: address, Address: address, Port: port,
		Weights: api.AgentWeights{Passing: 3, Warning: 1}}, Checks: api.HealthChecks{{Status: state}}}
}

// Set makes these the instances.
func (c *Consul) Set(entries ...*api.ServiceEntry) {
	c.update(func() { c.entries, c.index = entries, c.index+1 })
}

// SetIndex makes this the index, which goes back when Consul's servers were restored.
func (c *Consul) SetIndex(index uint64) { c.update(func() { c.index = index }) }

// SetToken makes it refuse queries with other tokens.
func (c *Consul) SetToken(token string) { c.update(func() { c.token = token }) }

// Change lets something else answer queries if it says that it has; nil: nothing.
func (c *Consul) Change(change func(w http.ResponseWriter, r *http.Request) (done bool)) {
	c.update(func() { c.change = change })
}

func (c *Consul) update(f func()) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// Queries are those until now.
func (c *Consul) Queries() []*http.Request {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return append([]*http.Request{}, c.queries...)
}

func (c *Consul) serve(w http.ResponseWriter, r *http.Request) {
	c.mutex.Lock()
	c.queries = append(c.queries, r)
	change, changed, blocked := c.change, c.changed, strconv.FormatUint(c.index, 10) == r.URL.Query().Get("index")
	c.mutex.Unlock()
	if change != nil && change(w, r) {
		return
	}
	if wait, _ := time.ParseDuration(r.URL.Query().Get("wait")); blocked {
		select {
		case <-changed:
		case <-time.After(wait):
		case <-r.Context().Done():
		}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.token != "" && r.Header.Get("X-Consul-Token") != c.token {
		http.Error(w, "rpc error: Permission denied: token with AccessorID lacks permission 'service:read'", http.StatusForbidden)
		return
	}
	Head(w, c.index)
	entries := c.entries
	if entries == nil {
		entries = []*api.ServiceEntry{}
	}
	if err := json.NewEncoder(w).Encode(entries); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// Head writes the headers of an answer.
func Head(w http.ResponseWriter, index uint64) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Consul-Index", strconv.FormatUint(index, 10))
	w.Header().Set("X-Consul-LastContact", "0")
	w.Header().Set("X-Consul-KnownLeader", "true")
}
