package api_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
)

// asks makes the test binary ask the daemon of a socket who it is.
const asks = "BALLAST_TEST_ASKS"

func TestMain(m *testing.M) {
	if socket := os.Getenv(asks); socket != "" {
		var who string
		if err := api.NewClient(socket).Get(context.Background(), "/who", &who); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Print(who)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestWhoeverAsksAfterSudoIsNamedByTheLogin(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may say who logged in")
	}
	if _, err := os.Stat("/proc/self/loginuid"); err != nil {
		t.Skip("this kernel does not keep who logged in:", err)
	}
	socket := filepath.Join(t.TempDir(), "ctl.sock")
	s := api.NewServer()
	s.Handle("GET /who", func(r *http.Request) (any, error) {
		who, _ := api.CallerOf(r.Context())
		return who.Name, nil
	})
	listener, err := api.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, listener) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for login, want := range map[string]string{
		"4294967295": "uid 0", "0": "uid 0", "2": "bin as uid 0", "123456789": "uid 123456789 as uid 0",
	} {
		cmd := exec.Command("sh", "-c", `echo "$1" > /proc/self/loginuid && exec "$0"`, os.Args[0], login)
		cmd.Env = append(os.Environ(), asks+"="+socket, "SUDO_USER=mallory")
		if said, err := cmd.CombinedOutput(); err != nil || string(said) != want {
			t.Errorf("login %s: %q, %v, want %q", login, said, err, want)
		}
	}
}
