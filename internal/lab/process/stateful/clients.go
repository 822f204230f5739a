package stateful

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gonum.org/v1/gonum/stat"
)

// Plan says what clients do: sessions of some requests, each in a connection of its own.
type Plan struct {
	Target    string        `json:"target"`
	Seed      uint64        `json:"seed"`
	Clients   int           `json:"clients"`    // at once
	PerSecond float64       `json:"per_second"` // requests of all, which are due at random times; 0: each as soon as the one before has its answer
	For       time.Duration `json:"for"`
	Requests  int           `json:"requests"` // of a session
	Bytes     int           `json:"bytes"`    // of its state
}

// Outcome is what they have seen.
type Outcome struct {
	Requests  int            `json:"requests"` // that were answered
	PerSecond float64        `json:"per_second"`
	MeanMS    float64        `json:"mean_ms"` // from when a request was due
	P99MS     float64        `json:"p99_ms"`
	Resumed   int            `json:"resumed"`   // TLS sessions
	Forgotten int            `json:"forgotten"` // requests whose session the server did not know as it should
	Failed    map[string]int `json:"failed"`    // by error
	Servers   map[string]int `json:"servers"`
	Proxies   map[string]int `json:"proxies"`
}

const patient = 30 * time.Second // for an answer

// clients share what they have seen.
type clients struct {
	Plan
	mutex   sync.Mutex
	outcome Outcome
	took    []float64 // ms
}

// Measure has clients make requests, and says on out what they have seen. The plan is on in.
func Measure(ctx context.Context, in io.Reader, out io.Writer) error {
	c := &clients{outcome: Outcome{Failed: map[string]int{}, Servers: map[string]int{}, Proxies: map[string]int{}}}
	if err := json.NewDecoder(in).Decode(&c.Plan); err != nil {
		return fmt.Errorf("read the plan of clients: %w", err)
	}
	begin := time.Now()
	var all sync.WaitGroup
	for i := range c.Clients {
		all.Go(func() { c.client(ctx, begin, mathrand.New(mathrand.NewPCG(c.Seed, uint64(i)))) })
	}
	all.Wait()
	o := &c.outcome
	o.Requests, o.PerSecond = len(c.took), float64(len(c.took))/time.Since(begin).Seconds()
	if len(c.took) > 0 {
		slices.Sort(c.took)
		o.MeanMS, o.P99MS = stat.Mean(c.took, nil), stat.Quantile(0.99, stat.Empirical, c.took, nil)
	}
	return json.NewEncoder(out).Encode(o)
}

// client has one session after another. Its requests are due at times that do not depend on answers, if at all.
func (c *clients) client(ctx context.Context, begin time.Time, random *mathrand.Rand) {
	due := begin
	for ctx.Err() == nil && time.Since(begin) < c.For {
		cookies := map[string]string{SessionCookie: strconv.FormatUint(random.Uint64(), 36)}
		// One segment, and what OpenSSL 3.0 has: proxies have no key exchange that is cheaper than that of others.
		config := &tls.Config{InsecureSkipVerify: true, ServerName: "lab", ClientSessionCache: tls.NewLRUClientSessionCache(1), CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256}}
		for i := 1; i <= c.Requests; i++ {
			if c.PerSecond == 0 {
				due = time.Now()
			} else {
				due = due.Add(time.Duration(random.ExpFloat64() * float64(time.Second) * float64(c.Clients) / c.PerSecond))
				if due.Sub(begin) > c.For {
					return
				}
				select {
				case <-time.After(time.Until(due)):
				case <-ctx.Done():
					return
				}
			}
			if !c.request(config, cookies, i, due) {
				break
			}
		}
	}
}

// request makes one, and notes what came of it.
func (c *clients) request(config *tls.Config, cookies map[string]string, i int, due time.Time) bool {
	answer, resumed, err := c.exchange(config, cookies, i)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	o := &c.outcome
	if err != nil {
		o.Failed[err.Error()]++
		return false
	}
	c.took = append(c.took, float64(time.Since(due).Microseconds())/1000)
	o.Servers[answer.Get(ServerHeader)]++
	if proxy := answer.Get(ProxyHeader); proxy != "" {
		o.Proxies[proxy]++
	}
	if resumed {
		o.Resumed++
	}
	if answer.Get(CountHeader) != strconv.Itoa(i) {
		o.Forgotten++
		return false
	}
	return true
}

func (c *clients) exchange(config *tls.Config, cookies map[string]string, i int) (header http.Header, resumed bool, err error) {
	plain, err := net.DialTimeout("tcp", c.Target, patient)
	if err != nil {
		return nil, false, errors.Unwrap(err)
	}
	conn := tls.Client(plain, config)
	defer conn.Close() // first: servers keep no TIME_WAIT
	if err := conn.SetDeadline(time.Now().Add(patient)); err != nil {
		return nil, false, err
	}
	url := fmt.Sprintf("/?bytes=%d", c.Bytes)
	if i == c.Requests {
		url += "&last=1"
	}
	var sent []string
	for name, value := range cookies {
		sent = append(sent, name+"="+value)
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: lab\r\nCookie: %s\r\n\r\n", url, strings.Join(sent, "; ")); err != nil {
		return nil, false, fmt.Errorf("write: %w", errors.Unwrap(err))
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil, false, fmt.Errorf("read: %w", err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return nil, false, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, false, errors.New(answer.Status)
	}
	for _, cookie := range answer.Cookies() {
		cookies[cookie.Name] = cookie.Value
	}
	return answer.Header, conn.ConnectionState().DidResume, nil
}
