package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/await"
)

// start serves on a free port and returns its address.
func start(t *testing.T, options Options) string {
	t.Helper()
	s := &server{Options: options, worker: newWorker(&options)}
	ctx, cancel := context.WithCancel(t.Context())
	go s.worker.run(ctx)
	listening := httptest.NewServer(s.routes())
	t.Cleanup(func() { listening.Close(); cancel() })
	return listening.URL
}

func get(t *testing.T, url string) (status int, body string, took time.Duration) {
	t.Helper()
	begin := time.Now()
	response, err := http.Get(url)
	if err != nil {
		t.Error(err)
		return 0, "", 0
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	return response.StatusCode, string(content), time.Since(begin)
}

func TestASleepingServerDoesItsWorkAtItsSpeed(t *testing.T) {
	url := start(t, Options{Server: "s1", Sleep: true, Speed: 0.5, Shared: true})
	begin := time.Now()
	var clients sync.WaitGroup
	for range 10 {
		clients.Go(func() {
			if status, body, _ := get(t, url+"/work?cost=10000&bytes=5"); status != 200 || len(body) != 5 {
				t.Errorf("status %d, body %q", status, body)
			}
		})
	}
	clients.Wait()
	if took := time.Since(begin); took < 195*time.Millisecond {
		t.Errorf("10 x 10 ms at speed 0.5 took %v", took)
	}
}

// awaitOutstanding waits until so many requests have begun.
func awaitOutstanding(t *testing.T, url string, want float64) {
	t.Helper()
	await.Nil(t, fmt.Sprintf("%g requests have begun", want), func() error {
		var load map[string]float64
		_, body, _ := get(t, url+"/load")
		if err := json.Unmarshal([]byte(body), &load); err != nil {
			t.Fatal(err)
		}
		if load["outstanding"] != want {
			return fmt.Errorf("load: %v", load)
		}
		return nil
	})
}

// The long one is not waited for where the short one is served beside it.
func TestSharedServersServeShortRequestsBesideLongOnes(t *testing.T) {
	for shared, long := range map[bool]time.Duration{true: time.Hour, false: 300 * time.Millisecond} {
		url := start(t, Options{Server: "s1", Sleep: true, Speed: 1, Shared: shared})
		ctx, cancel := context.WithCancel(t.Context())
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/work?cost=%d", url, long.Microseconds()), nil)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		var client sync.WaitGroup
		client.Go(func() {
			if response, err := http.DefaultClient.Do(request); err == nil {
				response.Body.Close()
			}
		})
		awaitOutstanding(t, url, 1)
		if status, _, _ := get(t, url+"/work?cost=1000"); status != 200 {
			t.Errorf("shared %t: status %d", shared, status)
		}
		if took := time.Since(begin); !shared && took < long {
			t.Errorf("the short one was served after %v, the long one takes %v", took, long)
		}
		cancel()
		client.Wait()
	}
}

func TestAFullServerRefuses(t *testing.T) {
	const limit, more = 2, 4
	url := start(t, Options{Server: "s1", Sleep: true, Speed: 1, Limit: limit})
	var clients sync.WaitGroup
	for range limit {
		clients.Go(func() {
			if status, _, _ := get(t, url+"/work?cost=700000"); status != 200 {
				t.Errorf("status %d", status)
			}
		})
	}
	awaitOutstanding(t, url, limit)
	for range more {
		if status, _, _ := get(t, url+"/work?cost=1000"); status != 503 {
			t.Errorf("status %d of a full server", status)
		}
	}
	clients.Wait()
	if _, body, _ := get(t, url+"/load"); body != `{"answered":2,"capacity":2,"failed":4,"outstanding":0}`+"\n" {
		t.Errorf("load: %s", body)
	}
}

func TestBurningTakesCPUTime(t *testing.T) {
	url := start(t, Options{Server: "s1", Speed: 1})
	if _, _, took := get(t, url+"/work?cost=30000"); took < 30*time.Millisecond {
		t.Errorf("30 ms of CPU in %v", took)
	}
}

func TestAnswersLastAsLongAsAsked(t *testing.T) {
	url := start(t, Options{Server: "s1", Speed: 1})
	for _, length := range []time.Duration{0, time.Millisecond, 300 * time.Millisecond} {
		status, body, took := get(t, fmt.Sprintf("%s/hold?for=%d&bytes=1000", url, length.Microseconds()))
		if status != 200 || len(body) != 1000 || took < length*9/10 {
			t.Errorf("%v: status %d, %d bytes in %v", length, status, len(body), took)
		}
	}
	for _, wrong := range []string{"/hold?for=1", "/work", "/work?cost=-1", "/work?cost=1&bytes=x"} {
		if status, _, _ := get(t, url+wrong); status != 400 {
			t.Errorf("%s: status %d", wrong, status)
		}
	}
}

func TestASleepingServerIsSlowedAndGetsItsSpeedBack(t *testing.T) {
	url := start(t, Options{Server: "s1", Sleep: true, Speed: 1})
	put := func(url string) int {
		request, err := http.NewRequest(http.MethodPut, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	if status := put(url + "/speed?share=0.1"); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	if _, _, took := get(t, url+"/work?cost=30000"); took < 290*time.Millisecond {
		t.Errorf("30 ms of work at a tenth of the speed took %v", took)
	}
	for _, share := range []string{"0", "-1", "1.1", "NaN", "fast", ""} {
		if status := put(url + "/speed?share=" + share); status != http.StatusBadRequest {
			t.Errorf("share %q: status %d", share, status)
		}
	}
	for _, share := range []string{"0.00001", "1"} { // without the second, the work would take hours
		if status := put(url + "/speed?share=" + share); status != http.StatusOK {
			t.Fatalf("status %d", status)
		}
	}
	if _, _, took := get(t, url+"/work?cost=100000"); took < 95*time.Millisecond {
		t.Errorf("100 ms of work took %v", took)
	}
	if status := put(start(t, Options{Server: "s2", Speed: 1}) + "/speed?share=0.5"); status != http.StatusBadRequest {
		t.Errorf("a server that burns: status %d", status)
	}
}
