package doctor

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
)

// serveStatus is a daemon of an instance that answers what it is, and nothing runs by it.
func serveStatus(t *testing.T, dir, instance, status string) {
	t.Helper()
	socket := api.SocketPath(dir, instance)
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case api.PathStatus:
			w.Write([]byte(status))
		case api.PathRunning:
			w.Write([]byte("{}"))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
}

func TestAControllerSpeaksForItself(t *testing.T) {
	dir := t.TempDir()
	serveStatus(t, dir, "c1", `{"role": "controller", "ready": true}`)
	findings := Examine(t.Context(), Options{Role: RoleAuto, Instance: "c1", RunDir: dir, StateDir: dir})
	if len(findings) != 1 || findings[0].Severity != OK || !strings.Contains(findings[0].Found, "--instance c1 node list") {
		t.Errorf("%+v", findings)
	}
	serveStatus(t, dir, "c2", `{"role": "controller", "ready": true, "problems": ["server s2 fails: see it"]}`)
	findings = Examine(t.Context(), Options{Role: RoleAuto, Instance: "c2", RunDir: dir, StateDir: dir})
	if len(findings) != 1 || findings[0].Severity != Problem || findings[0].Found != "reports: server s2 fails: see it" {
		t.Errorf("%+v", findings)
	}
}

// Whatever is wrong with any daemon of a machine is found without being asked for by name, and what they share is said once.
func TestAllDaemonsOfAMachineAreExamined(t *testing.T) {
	dir := t.TempDir()
	o := Options{Role: RoleAuto, Instance: "default", RunDir: dir, StateDir: filepath.Join(dir, "state")}
	serveStatus(t, dir, "default", `{"role": "lb", "ready": true, "config": {"path": "controller 10.0.0.1:9434"}, "by_controllers": true}`)
	serveStatus(t, dir, "agent", `{"role": "agent", "ready": false, "by_controllers": true, "problems": ["no VIP is here"], "not_ready": ["no VIP is here"]}`)
	serveStatus(t, dir, "c1", `{"role": "controller", "ready": true}`)
	if err := os.MkdirAll(filepath.Join(dir, "killed"), 0o700); err != nil {
		t.Fatal(err)
	}
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: api.SocketPath(dir, "killed"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()

	roles, said, kernel := map[string]Role{}, map[string]string{}, 0
	for _, e := range Machine(t.Context(), o, false) {
		roles[e.Instance] = e.Role
		for _, f := range e.Findings {
			if f.Check == "daemon" {
				said[e.Instance] += f.Severity.String() + " " + f.Found
			}
			if f.Check == "kernel" && f.Subject == "" {
				kernel++
			}
		}
	}
	want := map[string]Role{"agent": RoleAgent, "c1": RoleController, "default": RoleLB, "killed": RoleUnknown}
	for name, role := range want {
		if have, there := roles[name]; !there || have != role {
			t.Errorf("%s is %q, %v", name, have, there)
		}
	}
	for name, text := range map[string]string{"default": "ok ready", "agent": "problem is not ready: no VIP", "c1": "ok ready", "killed": "problem does not run, has run"} {
		if !strings.HasPrefix(said[name], text) {
			t.Errorf("%s: %q", name, said[name])
		}
	}
	if kernel > 1 {
		t.Errorf("the kernel is judged %d times alike", kernel)
	}
	names := func(o Options, only bool) (names []string) {
		for _, e := range Machine(t.Context(), o, only) {
			names = append(names, e.Instance)
		}
		return names
	}
	if have := names(o, true); !slices.Equal(have, []string{"default"}) {
		t.Errorf("asked for one: %v", have)
	}
	o.Role = RoleAgent
	if have := names(o, false); !slices.Equal(have, []string{"agent", "killed"}) {
		t.Errorf("asked for agents: %v", have)
	}
}
