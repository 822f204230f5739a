package comparison

import (
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// The test binary is the processes of a lab, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == process.Peer {
		os.Exit(process.Main(os.Args[2:], os.Stderr))
	}
	os.Exit(m.Run())
}

// breaks are how many connections a relay resets when its service restarts.
const breaks = 7

// relay is a balancer that breaks a known number of connections, and does nothing else with an event.
type relay struct {
	t        *world.Trial
	mutex    sync.Mutex
	accepted int
	open     map[*net.TCPConn]bool // the clients' ends
}

func (r *relay) Start(pool []State) {
	ownVIP(r.t)
	balancer := r.t.Lab.Space(world.LBName(1))
	script.Check(balancer.Do(func() error {
		listener, err := (&net.ListenConfig{}).Listen(r.t.Context, "tcp", target.String())
		if err == nil {
			r.t.Lab.OnClose(func() { listener.Close() })
			go r.accept(listener, with(pool, Active))
		}
		return err
	}))
}

func (r *relay) accept(listener net.Listener, pool []int) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		r.mutex.Lock()
		server := netip.AddrPortFrom(serverAddress(r.t, pool[r.accepted%len(pool)]), 80)
		r.accepted++
		r.open[client.(*net.TCPConn)] = true
		r.mutex.Unlock()
		go r.copy(client.(*net.TCPConn), server)
	}
}

func (r *relay) copy(client *net.TCPConn, to netip.AddrPort) {
	defer func() {
		client.Close()
		r.mutex.Lock()
		defer r.mutex.Unlock()
		delete(r.open, client)
	}()
	var server net.Conn
	err := r.t.Lab.Space(world.LBName(1)).Do(func() (err error) {
		server, err = net.Dial("tcp", to.String())
		return err
	})
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client)
		server.Close()
	}()
	_, _ = io.Copy(client, server)
}

func (r *relay) Restart(int) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	left := breaks
	for client := range r.open {
		if left--; left < 0 {
			return
		}
		_ = client.SetLinger(0)
		client.Close()
	}
}

func (r *relay) Change([]State)             {}
func (r *relay) Kill(int)                   {}
func (r *relay) Boot(int)                   {}
func (r *relay) Reload(int)                 {}
func (r *relay) Processes() []*host.Process { return nil }

func TestWhatAContenderBreaksIsCountedExactly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	if testing.Short() {
		t.Skip("it builds a network")
	}
	fake := Contender{Name: "relay", Balancers: 1, Checks: true, New: func(t *world.Trial) Balancing { return &relay{t: t, open: map[*net.TCPConn]bool{}} }}
	absent := Contender{Name: "absent", Programs: map[string]string{"no-such-program": "its-package"}}
	size := sizes{connections: 20, thinks: 100 * time.Millisecond, patience: 1500 * time.Millisecond, before: 200 * time.Millisecond, settle: 100 * time.Millisecond, after: 500 * time.Millisecond,
		between: 100 * time.Millisecond, work: time.Second, repeats: 1, idle: 200, opening: 200 * time.Millisecond, silence: 3 * time.Second}
	directory := t.TempDir()
	result, err := run(t.Context(), Options{Options: host.Options{Binary: "/proc/self/exe", Progress: t.Logf}, Directory: directory,
		Events: []string{"server-added", "server-killed", "balancer-restarted", "balancer-reloaded"}}, []Contender{absent, fake}, &size)
	if err != nil {
		t.Fatal(err)
	}
	if row := result.Contenders[0]; row.NotRun == "" || len(row.Steps) != 0 {
		t.Errorf("%+v", row)
	}
	row := result.Contenders[1]
	for event, want := range map[string]Measured{
		"server-added":       {Alive: 20},
		"server-killed":      {Alive: 20, Ended: 4}, // a fifth of them
		"balancer-restarted": {Alive: 20, Broken: breaks, Lost: breaks},
		"balancer-reloaded":  {Alive: 20},
	} {
		m := row.of(event)
		if m == nil || m.Alive != want.Alive || m.Broken != want.Broken || m.Ended != want.Ended {
			t.Errorf("%s: %+v, want %+v", event, m, want)
		} else if event != "server-killed" && m.Lost != want.Lost { // the relay goes on with a dead server
			t.Errorf("%s: %d requests lost, want %d", event, m.Lost, want.Lost)
		}
		if _, err := os.Stat(filepath.Join(directory, "relay", event+".connections.json")); err != nil {
			t.Error(err)
		}
	}
	if row.Cost == nil || row.Cost.Total <= 0 || row.Cost.PerSecond <= 0 || row.Quiet.P50 <= 0 {
		t.Errorf("%+v %+v", row.Cost, row.Quiet)
	}
	if c := row.Capacity; c == nil || c.Idle < size.idle || c.Total <= 0 || c.New <= 0 || c.New > row.Cost.PerSecond*2 {
		t.Errorf("%+v", c)
	}
	if err := result.Write(directory); err != nil {
		t.Error(err)
	}
	for _, name := range []string{fileResult, fileTable, fileCost, filepath.Join("relay", "events.log"), filepath.Join("relay", "s1-nginx.conf")} {
		if info, err := os.Stat(filepath.Join(directory, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
