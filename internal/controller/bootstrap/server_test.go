package bootstrap

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
)

// answer is the status that a path is answered with.
func answer(s http.Handler, path string) int {
	recorded := httptest.NewRecorder()
	s.ServeHTTP(recorded, httptest.NewRequest(http.MethodGet, path, nil))
	return recorded.Code
}

func TestRequestsWaitForTheStoreAndTheStatusDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := func(code int) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
		}
		s, began := newServer(status(http.StatusAccepted)), time.Now()
		if code := answer(s, api.PathStatus); code != http.StatusAccepted || time.Since(began) != 0 {
			t.Errorf("the status is %d after %v", code, time.Since(began))
		}
		if code := answer(s, "/metrics"); code != http.StatusServiceUnavailable || time.Since(began) != waitTime {
			t.Errorf("what waits in vain is answered with %d after %v", code, time.Since(began))
		}
		time.AfterFunc(waitTime/2, func() { s.open(status(http.StatusNoContent)) })
		began = time.Now()
		if code := answer(s, "/metrics"); code != http.StatusNoContent || time.Since(began) != waitTime/2 {
			t.Errorf("what waits until the store is open is answered with %d after %v", code, time.Since(began))
		}
	})
}
