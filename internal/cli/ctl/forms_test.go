package ctl_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/cli"
	"github.com/ballast-lb/ballast/internal/cli/clitest"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/model"
)

// aLoadBalancer answers all that ctl reads, on a socket that is served until stop is called.
func aLoadBalancer(t *testing.T, socket string) (stop func()) {
	t.Helper()
	memory := &apitest.Memory{Members: []*ballastv1.NodeStatus{{Role: "lb", Name: "lb1", Version: "1.0", Revision: 3, Problems: []string{"eth0: yes: no"}}, {Role: "agent", Name: "s1"},
		{Role: "lb", Name: "s1"}}, Past: []*ballastv1.FleetChange{{Name: "12", Role: "ctl", Changes: []string{"service web: removed"}}}}
	web := model.Service{Name: "web"}
	web.ApplyDefaults()
	server := api.NewServer()
	server.HandleRaw(api.NewFleetHandler(memory))
	for path, answer := range map[string]any{
		api.PathStatus: api.LBStatus{Status: api.Status{Role: "lb", Ready: true}}, api.PathCounters: api.Counters{Counters: map[string]uint64{"passed_not_ip": 3}},
		api.PathBGP: api.BGPStatus{AS: 64600}, api.PathL2: api.L2Status{Interface: "eth0", VIPs: []api.L2VIP{{VIP: netip.MustParseAddr("198.51.100.10"),
			Foreign: &api.L2Foreign{MAC: "02:00:00:00:00:05", Address: netip.MustParseAddr("10.0.0.5"), Is: "predecessor of service web"}}}, Peers: []api.L2Peer{{Name: "lb2"}}}, api.PathSessions: []api.SessionCounts{{Service: "web", Answered: 1}}, api.PathSuspects: []api.Suspect{{Service: "web"}},
		api.PathConnections: api.Connections{Node: "lb1", Connections: []api.Connection{}}, api.PathServices: []api.ServiceStatus{{Service: web}},
	} {
		server.Handle("GET "+path, func(*http.Request) (any, error) { return answer, nil })
	}
	server.Otherwise("this load balancer does not know that")
	ctx, cancel := context.WithCancel(context.Background())
	listener, done := listen(t, "unix", socket), make(chan error)
	go func() { done <- server.Serve(ctx, listener) }()
	ctl := &terminal{t, memory, []string{"ctl", "--socket", socket}}
	ctl.must("apply", "--yes", "-f", write(t, fleetFile))
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// below are the commands of a tree that run.
func below(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, child := range cmd.Commands() {
		below(child, do)
	}
}

// read is what is read of a program's output.
func read(t *testing.T, decode func([]byte, any) error, text string) (value any) {
	t.Helper()
	if err := decode([]byte(text), &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	normal, err := json.Marshal(value) // numbers of YAML are of several types
	if err != nil {
		t.Fatal(err)
	}
	value = nil
	if err := json.Unmarshal(normal, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

var yamlDecode = func(text []byte, value any) error { return yaml.Unmarshal(text, value) }

// operandsOf are what commands that show one thing are told here.
var operandsOf = map[string]string{"ballast ctl server show": "web s1", "ballast ctl service show": "web", "ballast ctl node show": "lb1"}

func TestEveryListHasEveryFormAndShortFormsAreTheSame(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "ctl.sock")
	defer aLoadBalancer(t, socket)()
	looked, short := 0, 0
	below(cli.Root("test"), func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())[1:]
		if cmd.Flags().Lookup("watch") == nil && cmd.Name() != "fleet" || slices.Contains([]string{"ballast ctl controller list", "ballast ctl invite list"}, cmd.CommandPath()) { // which ask controllers alone
			return
		}
		looked++
		say := func(path []string, more ...string) string {
			out, err := clitest.Run(append(append(append([]string{}, path...), "--socket", socket), more...)...)
			if err != nil {
				t.Errorf("%v %v: %v", path, more, err)
			}
			return out
		}
		path = append(path, strings.Fields(operandsOf[cmd.CommandPath()])...)
		asJSON, asYAML := say(path, "-o", "json"), say(path, "-o", "yaml")
		fleet := strings.Contains(cmd.CommandPath(), " fleet") // its YAML is a configuration file, as is tested elsewhere
		if want, have := read(t, json.Unmarshal, asJSON), read(t, yamlDecode, asYAML); !fleet && !reflect.DeepEqual(have, want) {
			t.Errorf("%v: YAML has %v, JSON %v", path, have, want)
		}
		if flag := say(path, "--json"); flag != asJSON {
			t.Errorf("%v: --json prints %s, -o json %s", path, flag, asJSON)
		}
		for line := range strings.Lines(say(path)) {
			if len(line) > 100 {
				t.Errorf("%v: a line of %d columns: %s", path, len(line), line)
			}
		}
		if cmd.Flags().Lookup("watch") != nil {
			if line := say(path, "-o", "json", "--watch", "--count", "1"); strings.Count(line, "\n") != 1 || !reflect.DeepEqual(read(t, json.Unmarshal, line), read(t, json.Unmarshal, asJSON)) {
				t.Errorf("%v --watch: %q is not one line of %s", path, line, asJSON)
			}
		}
		if same := cmd.Annotations[command.SameAs]; same != "" {
			short++
			for _, form := range []string{"table", "wide", "json", "yaml"} {
				if fleet && form != "json" && form != "yaml" {
					continue
				}
				if have, want := say(path, "-o", form), say(strings.Fields(same), "-o", form); have != want {
					t.Errorf("%v -o %s: %q, %s: %q", path, form, have, same, want)
				}
			}
		}
	})
	if looked < 24 || short < 12 {
		t.Errorf("looked at %d commands, %d short forms", looked, short)
	}
}

// Promise: `ballast ctl l2 show` names a host outside of the fleet that answers for a VIP.
func TestL2ShowNamesOtherHostsThatAnswer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "ctl.sock")
	defer aLoadBalancer(t, socket)()
	out, err := clitest.Run("ctl", "l2", "show", "--socket", socket)
	if err != nil || !strings.Contains(out, "02:00:00:00:00:05 (10.0.0.5, predecessor of service web)") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestFormsThatContradictEachOtherAreRefused(t *testing.T) {
	for line, want := range map[string]string{
		"server list --json -o yaml": "--json asks for another form", "server list -o yaml --json": "-o yaml asks for another form",
		"server list -o xml": "use table, wide, json or yaml", "fleet show -o wide": "a fleet is no table", "server list --json=perhaps": "use true or false",
	} {
		cmd := cli.Root("test")
		cmd.SetArgs(append([]string{"ctl", "--socket", "/nowhere"}, strings.Fields(line)...))
		ran, err := cmd.ExecuteC()
		var said bytes.Buffer
		if status := command.Finish(nil, ran, err, &said); status != command.StatusUsage || !strings.Contains(said.String(), want) {
			t.Errorf("%s: status %d, %q lacks %q", line, status, said.String(), want)
		}
	}
	t.Setenv("BALLAST_OUTPUT", "xml")
	if _, err := clitest.Run("ctl", "--socket", "/nowhere", "server", "list"); err == nil || !strings.Contains(err.Error(), "BALLAST_OUTPUT=xml: use table, wide, json or yaml") {
		t.Errorf("%v", err)
	}
	t.Setenv("BALLAST_OUTPUT", "wide")
	socket := filepath.Join(t.TempDir(), "ctl.sock")
	defer aLoadBalancer(t, socket)()
	if out, err := clitest.Run("ctl", "--socket", socket, "server", "list"); err != nil || !strings.Contains(out, "PATH") && !strings.Contains(out, "AGENT") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := clitest.Run("ctl", "--socket", socket, "server", "list", "--json"); err != nil || !json.Valid([]byte(out)) {
		t.Errorf("a flag and another form in the environment: %v: %s", err, out)
	}
	if out, err := clitest.Run("ctl", "--socket", socket, "fleet", "show"); err != nil || !strings.Contains(out, "services:") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestErrorsAreJSONForPrograms(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "ctl.sock")
	defer aLoadBalancer(t, socket)()
	for line, want := range map[string]struct {
		status     int
		code, says string
	}{
		"server drain web s9":     {1, "not_found", "has no server"},
		"service remove web":      {1, "failed", "say --yes"},
		"server weight web s1 x":  {2, "usage", "use a number"},
		"node show s1":            {1, "failed", "2 nodes are called s1: say which with --role"},
		"node show nobody":        {1, "not_found", "see `ballast ctl node list`"},
		"server show web nobody":  {1, "not_found", "has no server"},
		"service show nobody":     {1, "not_found", "there is no service"},
		"--context nobody status": {1, "not_found", "there is no context"},
		"context show nobody":     {1, "not_found", "there is no context"},
		"context use nobody":      {1, "not_found", "there is no context"},
		"config diff":             {1, "unimplemented", "does not know that"},
		"server list surplus one": {2, "usage", "one too many"},
	} {
		cmd := cli.Root("test")
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&bytes.Buffer{})
		cmd.SetIn(strings.NewReader(""))
		cmd.SetArgs(append([]string{"ctl", "--socket", socket, "-o", "json"}, strings.Fields(line)...))
		ran, err := cmd.ExecuteC()
		var said bytes.Buffer
		status := command.Finish(nil, ran, err, &said)
		var have struct {
			Error struct {
				Message, Code string
				Status        int `json:"exit_status"`
			}
		}
		if err := json.Unmarshal(said.Bytes(), &have); err != nil || status != want.status || have.Error.Status != status || have.Error.Code != want.code ||
			!strings.Contains(have.Error.Message, want.says) {
			t.Errorf("%s: status %d, %s (%v), want %+v", line, status, said.String(), err, want)
		}
	}
}

// A watch sees the daemon go and come, and ends with the status of Ctrl-C, with nothing to say.
func TestAWatchOutlivesADaemonsRestart(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "ctl.sock")
	stop := aLoadBalancer(t, socket)
	watch := exec.Command("/proc/self/exe", "ctl", "--socket", socket, "server", "list", "--watch", "--interval", "20ms", "-o", "json")
	out, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	complaints, err := watch.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(20*time.Second, func() { watch.Process.Kill() }).Stop()
	lines, said := bufio.NewScanner(out), bufio.NewScanner(complaints)
	if !lines.Scan() || !json.Valid(lines.Bytes()) {
		t.Fatalf("the first look: %s", lines.Text())
	}
	drained := make(chan int)
	go func() {
		n := 0
		for lines.Scan() {
			n++
		}
		drained <- n
	}()
	stop()
	if !said.Scan() || !strings.HasPrefix(said.Text(), "no answer: ") || !strings.HasSuffix(said.Text(), "still watching") {
		t.Fatalf("said %q", said.Text())
	}
	defer aLoadBalancer(t, socket)()
	if !said.Scan() || said.Text() != "there are answers again" {
		t.Fatalf("said %q", said.Text())
	}
	if err := watch.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-drained
	if said.Scan() {
		t.Errorf("it ends with %q", said.Text())
	}
	var exit *exec.ExitError
	if err := watch.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("it ends with %v", err)
	}
	if err := exec.Command("/proc/self/exe", "ctl", "--socket", "/nowhere", "server", "list", "--watch").Run(); err == nil {
		t.Error("a watch of what was never there waits for it")
	}
}
