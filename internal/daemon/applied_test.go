package daemon_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/controller"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
)

const controllerProcess = "controller"

func init() {
	dir := os.Getenv(daemonDir)
	if os.Getenv(daemonProcess) != controllerProcess {
		return
	}
	fmt.Fprintln(os.Stderr, "controller:", controller.Run(context.Background(), controller.Options{Name: "c1", Listen: remoteControllers[0], TLSDir: filepath.Join(dir, "tls"),
		RunDir: filepath.Join(dir, "run"), DataDir: filepath.Join(dir, "controller"), Timing: fleet.DefaultTiming, Version: "test", Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}))
	os.Exit(1)
}

// appliedHost is a load balancer by a controller, whose fleet somebody applies.
type appliedHost struct {
	*remoteHost
	controller *exec.Cmd
	life       *time.Timer
	clients    int // that have been there
}

func newAppliedHost(t *testing.T) *appliedHost {
	t.Helper()
	h := &appliedHost{remoteHost: newRemoteHost(t)}
	h.startController()
	h.start()
	t.Cleanup(h.endController)
	return h
}

// startController starts it beside the servers.
func (h *appliedHost) startController() {
	h.t.Helper()
	h.controller = h.command()
	h.controller.Env = append(h.controller.Env, daemonProcess+"="+controllerProcess)
	h.controller.Stderr = &h.output
	require(h.t, h.peer.Start(h.controller))
	running := h.controller
	h.life = time.AfterFunc(hostLife, func() { running.Process.Kill() })
}

func (h *appliedHost) endController() {
	if h.controller != nil {
		h.life.Stop()
		h.controller.Process.Kill()
		h.controller.Wait()
		h.controller = nil
	}
}

// apply applies a file, and waits until the load balancer runs by it.
func (h *appliedHost) apply(top, fields string) {
	h.t.Helper()
	draft, err := config.ParseDraft("fleet.yaml", []byte(top+`
services:
  - {name: web, vip: 198.51.100.10, ports: [80], health: {check: none}, `+fields+`
     servers: [{name: s1, address: 10.9.0.2}, {name: s2, address: 10.9.0.3}, {name: s3, address: 10.9.0.4}]}
`))
	require(h.t, err)
	request := api.FleetToProto(&draft.Fleet)
	request.Force = true
	operator := api.NewClient(api.SocketPath(h.runDir(), "c1")).Fleet()
	var revision uint64
	await.Nil(h.t, "the controller takes the file", func() error {
		answer, err := operator.Apply(h.t.Context(), request)
		if code := connect.CodeOf(err); err != nil && code != connect.CodeUnavailable && code != connect.CodeUnknown {
			require(h.t, err)
		}
		if len(answer.GetChanges()) > 0 { // else the state is as it was, and so is its revision
			revision = answer.GetRevision()
		}
		return err
	})
	h.await("the load balancer runs by the file", func(s api.LBStatus) bool { return s.Ready && s.Revision >= revision && len(s.Controllers) == 1 })
}

// next is a port of the client that it has not used before.
func (h *appliedHost) next() netip.AddrPort {
	h.clients++
	return netip.AddrPortFrom(tableClient.Addr(), 2000+uint16(h.clients))
}

// newSYN has timestamps, as clients' systems send them.
func newSYN() *layers.TCP {
	return &layers.TCP{SYN: true, Options: []layers.TCPOption{{OptionType: layers.TCPOptionKindNop}, {OptionType: layers.TCPOptionKindNop},
		{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: []byte{0, 0, 0, 1, 0, 0, 0, 0}}}}
}

// verdict is which of some verdicts a packet gets.
func (h *appliedHost) verdict(send func(), among ...string) (got string) {
	h.t.Helper()
	before := map[string]uint64{}
	for _, name := range among {
		before[name] = h.counter(name)
	}
	send()
	h.eventually("one of "+strings.Join(among, ", "), func() bool {
		for _, name := range among {
			if h.counter(name) > before[name] {
				got = name
			}
		}
		return got != ""
	})
	return got
}

var connectionsOf = regexp.MustCompile(`(?m)^ballast_server_connections_total\{.*server="(s\d)".*\} (\d+)$`)

// takers are how many get the connections of one client.
func (h *appliedHost) takers() (servers int) {
	h.t.Helper()
	total := func() map[string]string {
		counts := map[string]string{}
		for _, found := range connectionsOf.FindAllStringSubmatch(h.metrics(), -1) {
			counts[found[1]] = found[2]
		}
		return counts
	}
	before, sent := total(), h.counter("forwarded_new")
	const connections = 24
	for range connections {
		h.send(h.next(), newSYN())
	}
	h.eventually("connections are forwarded", func() bool { return h.counter("forwarded_new") == sent+connections })
	for server, count := range total() {
		if count != before[server] {
			servers++
		}
	}
	return servers
}

// applied is a file, and what a packet gets then.
type applied struct{ top, fields, want string }

// Promise: What a fleet file says of `syn_proxy`, `placement.over`, `allow` and `unserved` applies to packets when a controller has taken it, changes and
// goes without a restart, and stays when the load balancer restarts without controllers.
func TestFieldsOfAFileReachPacketsThroughAController(t *testing.T) {
	syn := func(h *appliedHost) string {
		return h.verdict(func() { h.send(h.next(), newSYN()) }, "forwarded_new", "dropped_not_allowed", "answered_syn")
	}
	for name, test := range map[string]struct {
		gets  func(h *appliedHost) string
		steps []applied
	}{
		"allow": {syn, []applied{{"", "", "forwarded_new"}, {"", "allow: [192.0.2.0/24],", "dropped_not_allowed"}, {"", "allow: [192.0.2.0/24, 203.0.113.7],", "forwarded_new"},
			{"", "allow: [203.0.113.0/30],", "dropped_not_allowed"}}},
		"syn_proxy": {syn, []applied{{"", "", "forwarded_new"}, {"", "syn_proxy: auto, syn_limit: 1000000,", "forwarded_new"}, {"", "syn_proxy: always,", "answered_syn"}}},
		"unserved": {func(h *appliedHost) string {
			return h.verdict(func() { h.sendTo(h.next(), 81, newSYN()) }, "passed_no_service", "answered_unserved")
		}, []applied{{"", "", "passed_no_service"}, {"unserved: pass", "", "passed_no_service"}, {"unserved: reject", "", "answered_unserved"}}},
		"placement.over": {func(h *appliedHost) string {
			if h.takers() == 1 {
				return "one server"
			}
			return "several"
		}, []applied{{"", "dispatch: maglev,", "several"}, {"", "dispatch: maglev, placement: {over: connection},", "several"}, {"", "dispatch: maglev, placement: {over: source},", "one server"}}},
	} {
		t.Run(name, func(t *testing.T) {
			noRaces(t)
			t.Parallel()
			h := newAppliedHost(t)
			gets := func(when string, want string) {
				t.Helper()
				if got := test.gets(h); got != want {
					t.Errorf("%s: %s, want %s", when, got, want)
				}
			}
			for _, step := range test.steps {
				h.apply(step.top, step.fields)
				gets(fmt.Sprintf("by %q %q", step.top, step.fields), step.want)
			}
			last := test.steps[len(test.steps)-1]
			h.endController()
			h.kill()
			h.start()
			h.await("the next process", func(s api.LBStatus) bool { return s.Ready && len(s.Controllers) == 0 })
			gets("after a restart without controllers", last.want)
			h.startController()
			h.await("the controller is back", func(s api.LBStatus) bool { return len(s.Controllers) == 1 })
			gets("with the controller again", last.want)
			h.apply(test.steps[0].top, test.steps[0].fields)
			gets("without the field", test.steps[0].want)
		})
	}
}

// A rate that controllers have set turns it on at the load balancer, by itself.
func TestAutoBySomebodysLimitThroughAController(t *testing.T) {
	noRaces(t)
	t.Parallel()
	h := newAppliedHost(t)
	h.apply("", "syn_proxy: auto, syn_limit: 1,")
	h.await("it to be on", func(s api.LBStatus) bool {
		on := !s.SYNProxy["web"].IsZero()
		if !on {
			h.send(h.next(), newSYN())
		}
		return on
	})
	h.apply("", "syn_proxy: auto, syn_limit: 1000000,")
	h.await("it to be off, as the limit is higher", func(s api.LBStatus) bool { return s.SYNProxy["web"].IsZero() })
	if got := h.verdict(func() { h.send(h.next(), newSYN()) }, "forwarded_new", "answered_syn"); got != "forwarded_new" {
		t.Errorf("below the limit: %s", got)
	}
}

// Promise: How far a server has come in slow_start, and until when it starts, a controller shows as its load balancers report it.
func TestControllersShowHowFarServersHaveCome(t *testing.T) {
	noRaces(t)
	t.Parallel()
	h := newAppliedHost(t)
	h.apply("", "slow_start: 1h,")
	operator := api.NewClient(api.SocketPath(h.runDir(), "c1")).Fleet()
	starting := func(asked ballastv1connect.FleetClient) (names string) {
		answer, err := asked.ListServers(t.Context(), &ballastv1.ListServersRequest{})
		require(t, err)
		for _, s := range answer.Servers {
			if s.WholeAt != nil {
				names += fmt.Sprintf("%s %v %v ", s.Server.Name, s.SlowStart, time.Until(s.WholeAt.AsTime()).Round(10*time.Minute))
			}
		}
		return names
	}
	if names := starting(operator); names != "" {
		t.Errorf("nobody has begun, but %s", names)
	}
	_, err := operator.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "s2", Force: true})
	require(t, err)
	h.eventually("the load balancer knows of the drain", func() bool { return h.service("web").Servers[1].State == model.StateDraining })
	_, err = operator.UndrainServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: "s2"})
	require(t, err)
	const shown = "s2 0.1 1h0m0s "
	h.eventually("the controller shows it", func() bool { return starting(operator) == shown })
	if names := starting(h.client.Fleet()); names != shown {
		t.Errorf("the load balancer shows %q", names)
	}
	h.apply("", "")
	h.eventually("the controller shows its end", func() bool { return starting(operator) == "" })
}
