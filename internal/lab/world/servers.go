// What runs on the servers of a lab.
package world

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/app"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/software"
	"github.com/ballast-lb/ballast/internal/model"
)

// Paths that every nginx of a lab serves. Blob is as long as a request's Range wants.
const (
	PathName   = "/name"
	PathBlob   = "/blob"
	PathUpload = "/upload/"
	PathHealth = "/health" // there as long as the server is to count as healthy
	blobBytes  = 8 << 30
)

// PathSlow is the blob at a limited rate.
func PathSlow(bytesPerSecond int) string { return fmt.Sprintf("/slow/%d/blob", bytesPerSecond) }

// AppServer describes an application server (`internal/lab/process/app`).
type AppServer struct {
	CPUs   float64 // that it gets; if the machine limits no CPU, its work is sleeping at this speed instead
	Sleep  bool    // its work is sleeping in any case
	Shared bool    // requests share it; else they are served in order
	Limit  int64   // requests at once, beyond which it refuses; 0: none
}

// How the servers' work is done.
const (
	workBurns  = "CPU time, limited by cgroups"
	workSleeps = "sleeping"
	workSends  = "sending, limited by the links"
)

// Servers are what all servers run: nginx, or an application server of known capacity.
type Servers struct {
	lab     *host.Lab
	network *Network
	fleet   *fleet.Fleet
	Work    string // how the servers' work is done

	mutex sync.Mutex
	nginx map[string]*host.Process // by node
}

// start starts what is to run on all servers and waits until all of it answers.
func (s *Servers) start() {
	_, noLimits := s.lab.Cgroup("")
	s.Work = workOf(s.network.Servers, noLimits)
	s.nginx = map[string]*host.Process{}
	errs := make([]error, len(s.network.Servers))
	var starting sync.WaitGroup
	for i, server := range s.network.Servers {
		if i < s.network.Functions {
			continue
		}
		starting.Go(func() {
			errs[i] = script.Try(func() {
				if name := ServerName(i + 1); server.App == nil {
					s.startNginx(name)
				} else {
					s.startApp(name, *server.App, noLimits == nil)
				}
			})
		})
	}
	starting.Wait()
	script.Check(errors.Join(errs...))
}

// workOf is what bounds servers, which have no CPU limits for the given reason.
func workOf(servers []ServerNode, noLimits error) string {
	apps := func(server ServerNode) bool { return server.App != nil }
	burns := func(server ServerNode) bool { return server.App != nil && !server.App.Sleep }
	switch {
	case !slices.ContainsFunc(servers, apps):
		return workSends
	case !slices.ContainsFunc(servers, burns):
		return workSleeps
	case noLimits != nil:
		return fmt.Sprintf("%s (%v)", workSleeps, noLimits)
	default:
		return workBurns
	}
}

// startApp starts an application server on port 80. With affinity quic it serves the trial's service as well.
func (s *Servers) startApp(node string, what AppServer, limits bool) {
	limits = limits && !what.Sleep
	options := app.Options{Address: ":80", Server: node, Sleep: !limits, Speed: what.CPUs, Shared: what.Shared, Limit: what.Limit}
	if s.fleet != nil && s.fleet.Services[0].Affinity == model.AffinityQUIC {
		options.HTTP3 = http3Options(s.lab, s.fleet, node)
	}
	// Two threads of Go code: the one that works and one for the network.
	p := s.lab.StartPeer(process.App, host.Spawn{Node: node, Environment: []string{"GOMAXPROCS=2"}}, options)
	p.AwaitPort(netip.MustParseAddrPort("127.0.0.1:80"))
	if limits {
		p.LimitCPU(node, what.CPUs)
	}
}

// web is nginx with the lab's paths.
func (s *Servers) web(node, dir string, listen ...string) software.Program {
	script.Checkf(os.MkdirAll(dir, 0o755), "write nginx configuration")
	script.Checkf(os.WriteFile(filepath.Join(dir, PathHealth), []byte("healthy\n"), 0o644), "make %s healthy", node)
	site := software.Site{Dir: dir, Name: node, Root: s.webRoot(), Header: traffic.ServerHeader, Health: PathHealth, Push: "on", Listen: listen}
	if s.network.MPTCP { // Linux 6.18: a header that waits on one subflow lets what follows on the other fill the client's buffer, for ever
		site.Push = "off"
	}
	return software.Program{Node: node, Name: "nginx", Arguments: []string{"-p", dir}, Configuration: "nginx", Dir: dir, Values: site}
}

// webRoot makes the directory that all servers serve; the blob is sparse.
func (s *Servers) webRoot() string {
	root := filepath.Join(s.lab.Dir, "www")
	script.Checkf(os.MkdirAll(root, 0o755), "make web root")
	blob, err := os.OpenFile(filepath.Join(root, "blob"), os.O_CREATE|os.O_WRONLY, 0o644)
	script.Checkf(err, "make blob")
	defer blob.Close()
	script.Checkf(blob.Truncate(blobBytes), "make blob")
	return root
}

func (s *Servers) startNginx(node string) {
	program := s.web(node, s.lab.NodeDir(node), "0.0.0.0:80 backlog=8192", "[::]:80 ipv6only=on backlog=8192", "0.0.0.0:8080", "[::]:8080 ipv6only=on")
	if s.network.MPTCP {
		program.Under = []string{"mptcpize", "run"}
	}
	program.Listens = netip.MustParseAddrPort("127.0.0.1:80")
	nginx := program.Start(s.lab)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.nginx[node] = nginx
}

// Kill kills the nginx of server i. Its host goes on, and refuses connections.
func (s *Servers) Kill(i int) { s.nginx[ServerName(i)].Kill() }

// Restart starts the nginx of server i again.
func (s *Servers) Restart(i int) { s.startNginx(ServerName(i)) }

// SetHealthy makes the health checks of a server succeed or fail.
func (s *Servers) SetHealthy(i int, healthy bool) {
	path := filepath.Join(s.lab.NodeDir(ServerName(i)), PathHealth)
	if healthy {
		script.Checkf(os.WriteFile(path, []byte("healthy\n"), 0o644), "make server %d healthy", i)
	} else {
		script.Checkf(os.Remove(path), "make server %d unhealthy", i)
	}
}

// Slow leaves application server i, whose work is sleeping, a share of its speed, as if other work had come there.
func (s *Servers) Slow(i int, share float64) {
	node := ServerName(i)
	script.Checkf(s.lab.Space(node).Do(func() error {
		connection, err := net.Dial("tcp", "127.0.0.1:80")
		if err != nil {
			return err
		}
		defer connection.Close()
		if err := connection.SetDeadline(time.Now().Add(await.Deadline)); err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(s.lab.Context, http.MethodPut, fmt.Sprintf("http://%s/speed?share=%g", node, share), nil)
		if err != nil {
			return err
		}
		if err := request.Write(connection); err != nil {
			return err
		}
		answer, err := http.ReadResponse(bufio.NewReader(connection), request)
		if err == nil && answer.StatusCode != http.StatusOK {
			err = errors.New(answer.Status)
		}
		return err
	}), "slow %s down", node)
}
