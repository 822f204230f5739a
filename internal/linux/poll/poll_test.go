package poll

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-lb/ballast/internal/await"
)

const deadline = 30 * time.Second

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start polls until the test ends.
func start(t *testing.T, o Options, targets ...Target) (p *Poller, results <-chan Result) {
	t.Helper()
	channel := make(chan Result, 10000)
	o.Report = func(r Result) { channel <- r }
	p = New(o)
	p.Set(targets)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return p, channel
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// application answers without a network: nothing takes longer than it says, however busy the machine is.
type application func(*http.Request) string

func (a application) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(a(r)))}, nil
}

func TestEndpointsAreThoseOfTheServers(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	for _, c := range []struct {
		endpoint string
		server   netip.Addr
		want     string
	}{
		{"http://:8080/load", four, "http://10.0.0.1:8080/load"},
		{"https://:8443/load?a=b", six, "https://[fd00::1]:8443/load?a=b"},
		{"http://monitor:80/load?a=b", four, "http://monitor:80/load?a=b&server=10.0.0.1"},
	} {
		if have, err := URL(c.endpoint, c.server); err != nil || have != c.want {
			t.Errorf("%s of %s: have %s, %v", c.endpoint, c.server, have, err)
		}
	}
	for _, endpoint := range []string{"", "ftp://:80/", "http:///load", "://"} {
		if have, err := URL(endpoint, four); err == nil {
			t.Errorf("%q: have %s", endpoint, have)
		}
	}
}

func TestRatesSurviveARestartOfTheApplication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []string{"answered 100\nfailed 10", "answered 150\nfailed 11", "broken", "answered 180\nfailed 11", "answered 7\nfailed 2"}
		at := 0
		app := application(func(*http.Request) string {
			at++
			return fmt.Sprintf("outstanding %d\n%s\n", at, answers[min(at, len(answers))-1])
		})
		_, results := start(t, Options{Transport: app}, Target{Service: "web", ID: 3, URL: "http://s3/load", Interval: 10 * time.Millisecond})
		for i, want := range [][2]uint64{{0, 0}, {50, 1}, {0, 0}, {30, 0}, {7, 2}, {0, 0}} {
			r := await.Value(t, results, "there is one", func(Result) bool { return true })
			if (r.Err != nil) != (i == 2) || r.Answered != want[0] || r.Failed != want[1] || r.Service != "web" || r.ID != 3 {
				t.Errorf("result %d: %+v", i, r)
			}
		}
	})
}

func TestErrorsNameTheURL(t *testing.T) {
	closed := httptest.NewServer(nil)
	closed.Close()
	for _, c := range []struct {
		name, url, want string
	}{
		{"garbage", serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }), `line "hello" of the answer is not a name and a number`},
		{"an error", serve(t, http.NotFound), "the answer is 404 Not Found"},
		{"elsewhere", serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) }), "the answer is 302 Found"},
		{"too long", serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("outstanding 1\n", 1000)) }), "the answer is longer than 4096 bytes"},
		{"too slow", serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), "context deadline exceeded"},
		{"drops by drops", serve(t, func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				fmt.Fprint(w, "#")
				w.(http.Flusher).Flush()
				<-time.After(time.Millisecond)
			}
		}), "read the answer: context deadline exceeded"},
		{"nobody there", closed.URL, "connection refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, results := start(t, Options{}, Target{URL: c.url, Interval: 100 * time.Millisecond})
			tooLate := func(err error) bool { return err != nil && strings.HasSuffix(err.Error(), "context deadline exceeded") }
			r := await.Value(t, results, "it says "+c.want, func(r Result) bool { // on a busy machine others may take too long, too
				return !tooLate(r.Err) || strings.HasSuffix(r.Err.Error(), c.want)
			})
			if r.Err == nil || !strings.HasSuffix(r.Err.Error(), c.want) || !strings.HasPrefix(r.Err.Error(), "poll "+c.url+": ") {
				t.Error(r.Err)
			}
		})
	}
}

// One server takes long, and of many only a few may be asked at once.
func TestPollsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const targets, most = 50, 4
		var mu sync.Mutex
		underWay, worst, slowUnderWay := 0, 0, 0
		count := func(r *http.Request, change int) {
			mu.Lock()
			defer mu.Unlock()
			underWay += change
			worst = max(worst, underWay)
			if r.URL.Host == "s1" {
				if slowUnderWay += change; slowUnderWay > 1 {
					t.Error("a server is asked again before it has answered")
				}
			}
		}
		app := application(func(r *http.Request) string {
			count(r, 1)
			defer count(r, -1)
			if r.URL.Host == "s1" {
				time.Sleep(40 * time.Millisecond)
			}
			time.Sleep(2 * time.Millisecond) // all together more than the few have time for
			return "outstanding 1"
		})
		var all []Target
		for id := range uint16(targets) {
			all = append(all, Target{ID: id, URL: fmt.Sprintf("http://s%d/", id), Interval: 10 * time.Millisecond})
		}
		_, results := start(t, Options{Most: most, Transport: app}, all...)
		counts := make(map[uint16]int)
		await.Value(t, results, "all have answered", func(r Result) bool {
			check(t, r.Err)
			counts[r.ID]++
			return len(counts) == targets && counts[1] > 3
		})
		mu.Lock()
		defer mu.Unlock()
		if worst != most {
			t.Errorf("%d at once, want %d", worst, most)
		}
	})
}

func TestApplicationsThatDoNotAnswerHoldUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval, silent = 100 * time.Millisecond, 500
		app := application(func(r *http.Request) string {
			if r.URL.Host == "silent" {
				<-r.Context().Done()
			}
			return "outstanding 1"
		})
		all := []Target{{Service: "live", URL: "http://live/", Interval: interval}}
		for id := range uint16(silent) {
			all = append(all, Target{Service: "silent", ID: id, URL: "http://silent/", Interval: interval})
		}
		began, polls := time.Now(), 0
		_, results := start(t, Options{Transport: app}, all...)
		await.Value(t, results, "the live one has answered 10 times", func(r Result) bool {
			if r.Service == "live" && r.Err == nil {
				polls++
			}
			return polls == 10
		})
		if took := time.Since(began); took > 12*interval {
			t.Errorf("10 polls took %v", took)
		}
	})
}

func TestTargetsComeAndGo(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "outstanding %s", r.URL.Path[1:]) })
	target := func(id uint16, answer string) Target {
		return Target{Service: "web", ID: id, URL: url + "/" + answer, Interval: 10 * time.Millisecond}
	}
	p, results := start(t, Options{}, target(1, "10"), target(2, "20"))
	says := func(id uint16, outstanding float64) func(Result) bool {
		return func(r Result) bool { return r.Err == nil && r.ID == id && r.Status.Outstanding == outstanding }
	}
	await.Value(t, results, "2 says 20", says(2, 20))
	p.Set([]Target{target(2, "21"), target(3, "30")})
	await.Value(t, results, "2 says 21", says(2, 21))
	await.Value(t, results, "3 says 30", says(3, 30))
	for len(results) > 0 {
		<-results
	}
	seen := 0
	await.Value(t, results, "some time has passed", func(r Result) bool {
		if r.ID == 1 {
			t.Error("1 is still asked")
		}
		seen++
		return seen > 10
	})
}

// Servers that begin together are not asked together: of 8 that are asked every 40 ms, hardly ever all within 5 ms.
func TestServersAreNotAskedInStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const servers, rounds = 8, 12
		var mu sync.Mutex
		var times []time.Time
		app := application(func(*http.Request) string {
			mu.Lock()
			defer mu.Unlock()
			times = append(times, time.Now())
			return "outstanding 1"
		})
		var all []Target
		for id := range uint16(servers) {
			all = append(all, Target{ID: id, URL: "http://all/", Interval: 40 * time.Millisecond})
		}
		_, results := start(t, Options{Transport: app}, all...)
		for range servers * rounds {
			await.Value(t, results, "there is one", func(Result) bool { return true })
		}
		mu.Lock()
		defer mu.Unlock()
		bursts := 0
		for i := servers - 1; i < len(times); i++ {
			if times[i].Sub(times[i-servers+1]) < 5*time.Millisecond {
				bursts++
			}
		}
		if bursts > len(times)/4 {
			t.Errorf("%d bursts in %d polls", bursts, len(times))
		}
	})
}

// startNginx runs nginx with stub_status and a slow file until the test ends.
func startNginx(t *testing.T) (address string) {
	t.Helper()
	path, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("nginx is not installed")
	}
	for range 5 {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		address = free.Addr().String()
		check(t, free.Close())
		if runNginx(t, path, address) {
			return address
		}
	}
	t.Fatal("nginx does not listen: its error log is above")
	return ""
}

// runNginx reports whether nginx listens: somebody else may have the port by now.
func runNginx(t *testing.T, path, address string) bool {
	t.Helper()
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, "blob"), make([]byte, 1<<20), 0o644))
	user := "user root;"
	if os.Geteuid() != 0 {
		user = ""
	}
	check(t, os.WriteFile(filepath.Join(dir, "nginx.conf"), fmt.Appendf(nil, `daemon off; master_process off; %[3]s
pid %[1]s/nginx.pid; error_log %[1]s/error.log; events { worker_connections 256; }
http { access_log off; client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
server { listen %[2]s; location = /load { stub_status; } location = /blob { root %[1]s; limit_rate 1024; } } }
`, dir, address, user), 0o644))
	log := filepath.Join(dir, "error.log")
	nginx := exec.Command(path, "-p", dir, "-e", log, "-c", filepath.Join(dir, "nginx.conf"))
	check(t, nginx.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = nginx.Wait() }()
	t.Cleanup(func() { _ = nginx.Process.Kill(); <-ended })
	for end := time.Now().Add(deadline); time.Now().Before(end); {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			check(t, connection.Close())
		}
		select {
		case <-ended:
			said, _ := os.ReadFile(log)
			t.Logf("%s", said)
			return false
		case <-time.After(10 * time.Millisecond):
		}
		if err == nil {
			return true
		}
	}
	return false
}

func TestOutstandingRequestsOfNginxAreThoseThatItWorksOn(t *testing.T) {
	address := startNginx(t)
	_, results := start(t, Options{}, Target{URL: "http://" + address + "/load", Interval: 20 * time.Millisecond})
	first := await.Value(t, results, "nginx is idle", func(r Result) bool { return r.Err == nil && r.Status.Outstanding == 0 })
	for range 2 { // kept alive, without a request
		idle, err := net.Dial("tcp", address)
		check(t, err)
		defer idle.Close()
		_, err = fmt.Fprintf(idle, "GET /none HTTP/1.1\r\nHost: x\r\n\r\n")
		check(t, err)
		_, err = idle.Read(make([]byte, 64))
		check(t, err)
	}
	for range 3 {
		slow, err := http.Get("http://" + address + "/blob")
		check(t, err)
		defer slow.Body.Close()
		_, err = io.ReadFull(slow.Body, make([]byte, 16))
		check(t, err)
	}
	r := await.Value(t, results, "three requests are outstanding", func(r Result) bool { return r.Err == nil && r.Status.Outstanding == 3 })
	if r.Status.Answered < first.Status.Answered+5 || r.Status.Failed != 0 {
		t.Errorf("first %+v, then %+v", first, r)
	}
}
