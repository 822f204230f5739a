// The servers' nginx: stock, one worker, its whole configuration in the lab's directory.
package world

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"text/template"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/script"
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

var nginxTemplate = template.Must(template.New("nginx").Parse(`
daemon off;
master_process off;
user root;
pid {{.Dir}}/nginx.pid;
error_log {{.Dir}}/nginx-error.log warn;
events { worker_connections 16384; }
http {
  access_log off;
  sendfile on;
  tcp_nopush {{.Push}};
  default_type application/octet-stream;
  keepalive_timeout 3600s;
  keepalive_requests 1000000;
  client_body_timeout 3600s;
  send_timeout 3600s;
  client_max_body_size 0;
  client_body_temp_path {{.Dir}}/body;
  proxy_temp_path {{.Dir}}/proxy;
  fastcgi_temp_path {{.Dir}}/fastcgi;
  uwsgi_temp_path {{.Dir}}/uwsgi;
  scgi_temp_path {{.Dir}}/scgi;
  server {
    listen 0.0.0.0:80 backlog=8192;
    listen [::]:80 ipv6only=on backlog=8192;
    listen 0.0.0.0:8080;
    listen [::]:8080 ipv6only=on;
    add_header {{.Header}} {{.Name}} always;
    location = /name { return 200 "{{.Name}}\n"; }
    location = /blob { root {{.Root}}; }
    location ~ ^/slow/(?<rate>[0-9]+)/(?<file>.+)$ { alias {{.Root}}/$file; limit_rate $rate; }
    location = /status { stub_status; }
    location = {{.Health}} { root {{.Dir}}; }
    location /upload/ { root {{.Dir}}; dav_methods PUT; create_full_put_path on; }
  }
}
`))

// startNginx starts nginx on a server and waits until it answers.
func (l *Lab) startNginx(ctx context.Context, server string) {
	root := l.webRoot()
	dir := l.NodeDir(server)
	var text bytes.Buffer
	push := "on"
	if l.Topology.MPTCP { // Linux 6.18: a header that waits on one subflow lets what follows on the other fill the client's buffer, for ever
		push = "off"
	}
	script.Checkf(nginxTemplate.Execute(&text, map[string]string{
		"Dir": dir, "Name": server, "Push": push, "Root": root, "Header": traffic.ServerHeader, "Health": PathHealth,
	}), "write nginx configuration")
	script.Checkf(os.WriteFile(filepath.Join(dir, PathHealth), []byte("healthy\n"), 0o644), "make %s healthy", server)
	path := filepath.Join(dir, "nginx.conf")
	script.Checkf(os.WriteFile(path, text.Bytes(), 0o644), "write nginx configuration")
	command := []string{"nginx", "-p", dir, "-c", path}
	if l.Topology.MPTCP {
		command = append([]string{"mptcpize", "run"}, command...)
	}
	nginx, err := l.Start(Spawn{Node: server, Program: command[0], Arguments: command[1:]})
	if err != nil {
		script.Check(fmt.Errorf("%w: install %s", err, command[0]))
	}
	l.AwaitPort(ctx, nginx, server, netip.MustParseAddrPort("127.0.0.1:80"))
}

// webRoot makes the directory that all servers serve; the blob is sparse.
func (l *Lab) webRoot() string {
	root := filepath.Join(l.dir, "www")
	script.Checkf(os.MkdirAll(root, 0o755), "make web root")
	blob, err := os.OpenFile(filepath.Join(root, "blob"), os.O_CREATE|os.O_WRONLY, 0o644)
	script.Checkf(err, "make blob")
	defer blob.Close()
	script.Checkf(blob.Truncate(blobBytes), "make blob")
	return root
}

// AwaitPort waits until something listens at address on the node, or the process has died.
func (l *Lab) AwaitPort(ctx context.Context, p *Process, node string, address netip.AddrPort) {
	what := fmt.Sprintf("%s listens on %s", p.name, address)
	Await(ctx, DaemonDeadline, what, func() error {
		if err := p.Died(); err != nil {
			return StopWaiting(err)
		}
		return l.Space(node).Do(func() error {
			connection, err := net.DialTimeout("tcp", address.String(), time.Second)
			if err == nil {
				err = connection.Close()
			}
			return err
		})
	})
}
