package doctor

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
)

func TestAControllerIsNotTakenForADeadLoadBalancer(t *testing.T) {
	dir := t.TempDir()
	socket := api.SocketPath(dir, "c1")
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != api.PathStatus {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Write([]byte(`{"role": "controller", "ready": true}`))
	}))
	findings := Examine(t.Context(), Options{Role: RoleAuto, Instance: "c1", RunDir: dir, StateDir: dir})
	if len(findings) != 1 || findings[0].Severity != Problem || !strings.Contains(findings[0].Found, "is a controller") {
		t.Errorf("%+v", findings)
	}
}
