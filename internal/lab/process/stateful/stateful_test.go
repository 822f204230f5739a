package stateful

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/await"
)

// count makes a request of a session and returns what its state has counted.
func count(s *server, session, query string) string {
	request, answer := httptest.NewRequest(http.MethodGet, "/?"+query, nil), httptest.NewRecorder()
	request.AddCookie(&http.Cookie{Name: SessionCookie, Value: session})
	s.ServeHTTP(answer, request)
	if answer.Code != http.StatusOK {
		return answer.Body.String()
	}
	return answer.Header().Get(CountHeader)
}

func startRedis(t *testing.T) (address string) {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = listener.Addr().String()
	listener.Close()
	_, port, _ := net.SplitHostPort(address)
	redis := exec.Command(program, "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	if err := redis.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { redis.Process.Kill(); redis.Wait() })
	await.Nil(t, "Redis answers", func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_, err = Commands(t.Context(), conn)
		}
		return err
	})
	return address
}

func TestAStateIsKeptFromRequestToRequestUntilItsLast(t *testing.T) {
	for name, where := range map[string]func(t *testing.T) states{
		"memory": func(*testing.T) states { return &memory{states: map[string][]byte{}} },
		"redis":  func(t *testing.T) states { return newRedis(startRedis(t), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{"s1", where(t)}
			for i, one := range []struct{ session, query, want string }{
				{"a", "bytes=5000", "1"}, {"a", "bytes=5000", "2"}, {"b", "bytes=12", "1"}, {"a", "bytes=5000&last=1", "3"}, {"a", "bytes=5000", "1"}, {"b", "bytes=12", "2"},
			} {
				if got := count(s, one.session, one.query); got != one.want {
					t.Errorf("request %d is counted as %s", i, got)
				}
			}
			if err := s.states.put(t.Context(), "a", make([]byte, 5000)); err != nil {
				t.Fatal(err)
			}
			if got := count(s, "a", "bytes=5001"); !strings.Contains(got, "not as it was kept") {
				t.Errorf("a state of another length is counted as %s", got)
			}
		})
	}
}

func TestRequestsWithoutSessionOrLengthAreRefused(t *testing.T) {
	s := &server{"s1", &memory{states: map[string][]byte{}}}
	for _, query := range []string{"", "bytes=11", "bytes=x", fmt.Sprintf("bytes=%d", maxState+1)} {
		if got := count(s, "a", query); !strings.Contains(got, "give a session") {
			t.Errorf("%q is answered by %s", query, got)
		}
	}
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/?bytes=12", nil))
	if answer.Code != http.StatusBadRequest {
		t.Error(answer.Code)
	}
}

func TestRedisThatIsNotThereIsAnError(t *testing.T) {
	conn, other := net.Pipe()
	other.Close()
	if _, err := Commands(t.Context(), conn); err == nil || !strings.Contains(err.Error(), "ask Redis") {
		t.Error(err)
	}
}
