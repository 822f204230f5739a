// Package console tests the console as people see it: a controller, what simulated nodes report to it, and a browser.
package console

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

// long skips what make test-long is for.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("BALLAST_LONG") == "" {
		t.Skip("needs Chromium and npm: set BALLAST_LONG=1")
	}
}

var binary string

func TestMain(m *testing.M) {
	if os.Getenv("BALLAST_LONG") == "" {
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "ballast-console-")
	if err == nil {
		binary = filepath.Join(dir, "ballast")
		build := exec.Command("go", "build", "-o", binary, "github.com/ballast-lb/ballast/cmd/ballast")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "build ballast: %v\n", err)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// fleet is a controller, and nodes that report to it.
type fleet struct {
	t       *testing.T
	ca      *fleettest.Authority
	address string // of the controller
	listen  string // of its console
	page    string
	stop    func()
	dir     string
	lbs     []*fleettest.Conversation
	begun   map[string]uint64 // connections that were dispatched, by service and id
}

// startFleet runs `ballast controller` until the test ends.
func startFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, ca: fleettest.NewAuthority(t), address: freeAddress(t), listen: freeAddress(t), dir: t.TempDir(), begun: map[string]uint64{}}
	f.page = "http://" + f.listen + "/"
	f.ca.Issue(pki.Controller, "c1", "127.0.0.1")
	f.ca.Issue(pki.Ctl, "alice")
	f.start()
	return f
}

func (f *fleet) start() {
	f.t.Helper()
	c := exec.Command(binary, "controller", "--tls-dir", f.ca.Dir, "--name", "c1", "--listen", f.address, "--run-dir", f.dir+"/run",
		"--data-dir", f.dir+"/data", "--console", f.listen)
	c.Stderr = f.t.Output()
	fleettest.Require(f.t, c.Start())
	f.stop = sync.OnceFunc(func() { c.Process.Signal(os.Interrupt); c.Wait() })
	f.t.Cleanup(f.stop)
	await.Nil(f.t, "the controller answers", func() error { return f.ctl("fleet") })
}

func freeAddress(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fleettest.Require(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

// ctl is what an operator does.
func (f *fleet) ctl(arguments ...string) error {
	out, err := exec.Command(binary, append([]string{"ctl", "--controller", f.address, "--tls-dir", f.ca.Dir}, arguments...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

// apply makes services of so many servers each.
func (f *fleet) apply(servers map[string]int) {
	f.t.Helper()
	var text strings.Builder
	text.WriteString("services:\n")
	vip := 1
	for _, name := range []string{"web", "mail", "dns"} {
		if servers[name] == 0 {
			continue
		}
		fmt.Fprintf(&text, "  - name: %s\n    vip: 198.51.100.%d\n    ports: [443]\n    dispatch: p2c\n    health: {check: tcp}\n    servers:\n", name, vip)
		for i := range servers[name] {
			fmt.Fprintf(&text, "      - {name: %s-%d, address: 10.%d.%d.%d}\n", name, i+1, vip, (i+1)>>8, (i+1)&255)
		}
		vip++
	}
	path := filepath.Join(f.dir, "fleet.yaml")
	fleettest.Require(f.t, os.WriteFile(path, []byte(text.String()), 0o600))
	fleettest.Require(f.t, f.ctl("apply", "-f", path, "--yes"))
}

// join has load balancers join; they do what the test says, and read what they are sent.
func (f *fleet) join(names ...string) {
	for _, name := range names {
		lb := fleettest.Join(f.t, f.address, f.ca.Issue(pki.LB, name, "127.0.0.1"))
		lb.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Condition{Condition: &ballastv1.Condition{Ready: true, Addresses: []string{"192.0.2.1"}}}})
		go func() {
			for {
				message, err := lb.Stream.Receive()
				if err != nil {
					return
				}
				if state := message.GetState(); state != nil {
					lb.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Applied{Applied: &ballastv1.Applied{Revision: state.Revision}}})
				}
				if q := message.GetQuestion(); q.GetSample() {
					lb.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Explained{Explained: sampled(name, q.Number)}})
				}
			}
		}()
		f.lbs = append(f.lbs, lb)
	}
}

// sampled is what a load balancer answers that is asked for a sample; lb2 cannot take one.
func sampled(name string, question uint64) *ballastv1.Explained {
	if name == "lb2" {
		return &ballastv1.Explained{Number: question, Explanation: &ballastv1.Explanation{Error: "a trace is running already"}}
	}
	return &ballastv1.Explained{Number: question, Sample: &ballastv1.Sample{Seconds: 5, Sampled: 2400, Packets: 1_200_000,
		Clients: []*ballastv1.SampleShare{{Name: "203.0.113.0/24", Packets: 720_000, Share: 0.6, Error: 0.02}, {Name: markup, Packets: 480_000, Share: 0.4, Error: 0.02}},
		Servers: []*ballastv1.SampleShare{{Name: "web web-1", Packets: 1_200_000, Share: 1}}}}
}

// markup would complain if a browser took it for a part of the page.
const markup = `<img src=x onerror="console.error(1)">`

// joinAgents has the agents of all servers join, which say nothing.
func (f *fleet) joinAgents(servers map[string]int) {
	for service, n := range servers {
		for id := range n {
			agent := fleettest.Join(f.t, f.address, f.ca.Issue(pki.Agent, fmt.Sprintf("%s-%d", service, id+1)))
			agent.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Condition{Condition: &ballastv1.Condition{Ready: true}}})
		}
	}
}

// report is a second of traffic: servers get what share says of so many new connections; those in unhealthy fail their checks.
func (f *fleet) report(servers map[string]int, connections func(service string, id int) int, unhealthy map[string]string) {
	traffic, checked := &ballastv1.TrafficReport{}, &ballastv1.HealthReport{}
	for service, n := range servers {
		for id := 1; id <= n; id++ {
			key := fmt.Sprintf("%s-%d", service, id)
			f.begun[key] += uint64(connections(service, id))
			begun := f.begun[key]
			traffic.Servers = append(traffic.Servers, &ballastv1.ServerTraffic{Service: service, Id: uint32(id), Connections: begun, Closed: begun * 3 / 4, Packets: 20 * begun})
			checked.Servers = append(checked.Servers, &ballastv1.ServerHealth{Service: service, Id: uint32(id), Healthy: unhealthy[key] == "", Detail: unhealthy[key]})
		}
	}
	for _, lb := range f.lbs {
		lb.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Traffic{Traffic: traffic}})
		lb.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Health{Health: checked}})
	}
}

// live reports every second until the test ends.
func (f *fleet) live(servers map[string]int, connections func(service string, id int) int, unhealthy map[string]string) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			f.report(servers, connections, unhealthy)
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	f.t.Cleanup(func() { cancel(); <-ended })
}
