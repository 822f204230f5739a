"""An HTTP/3 server of a lab, by Envoy: ENVOY ADDRESS NAME CERTIFICATE [FILE], before an HTTP server of its own.

What makes its connection ids comes from `ballast ctl quic config` ($BALLAST) and the agent's FILE, as an operator gets it; when FILE changes,
the secret is written anew."""

import ctypes
import http.server
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

envoy, address, name, certificate, *file = sys.argv[1:]
PIECE = 8192
PR_SET_PDEATHSIG = 1


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def begin(self, status, length):
        self.send_response(status)
        self.send_header("x-server", name)
        if status != 204:
            self.send_header("content-length", str(length))
        self.end_headers()

    def do_GET(self):
        parts = self.path.strip("/").split("/")
        if parts[0] == "name":
            body = (name + "\n").encode()
            self.begin(200, len(body))
            self.wfile.write(body)
            return
        left = int(self.headers.get("range", "bytes=0--1").removeprefix("bytes=0-")) + 1
        rate = int(parts[1]) if parts[0] == "slow" else 0
        self.begin(200, left)
        start, sent = time.monotonic(), 0
        while left:
            some = min(left, PIECE)
            self.wfile.write(bytes(some))
            left -= some
            sent += some
            if rate and left:
                time.sleep(max(0, start + sent / rate - time.monotonic()))

    def do_PUT(self):
        left = int(self.headers.get("content-length", 0))
        while left:
            left -= len(self.rfile.read(min(left, 65536)))
        self.begin(204, 0)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, *_):  # who went away
        pass


def config(kind):
    ids = pathlib.Path(file[0])
    return subprocess.run(
        [os.environ["BALLAST"], "ctl", "--run-dir", ids.parent.parent.parent, "--instance", ids.parent.name, "quic", "config", ids.stem, "--for", kind],
        check=True, capture_output=True, text=True).stdout


def write(path, text):
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def follow(secret):
    """As an operator's path unit would."""
    seen = os.stat(file[0]).st_mtime_ns
    write(secret, config("envoy-secret"))
    while True:
        time.sleep(0.05)
        if os.path.exists(file[0]) and os.stat(file[0]).st_mtime_ns != seen:
            seen = os.stat(file[0]).st_mtime_ns
            write(secret, config("envoy-secret"))


def main():
    upstream = Server(("127.0.0.1", 0), Handler)
    home = pathlib.Path(certificate).parent / (name + "-envoy")
    home.mkdir(exist_ok=True)
    options, secret = "quic_options: {}", home / "quic_lb.yaml"
    if file:
        while not os.path.exists(file[0]):  # an agent that starts writes it
            time.sleep(0.05)
        options = config("envoy").replace("/etc/envoy/quic_lb.yaml", str(secret))
        write(secret, config("envoy-secret"))
    host, port = address.rsplit(":", 1)
    write(home / "envoy.yaml", """\
node: {id: lab, cluster: lab}
static_resources:
  listeners:
  - name: h3
    address: {socket_address: {protocol: UDP, address: "%s", port_value: %s}}
    udp_listener_config:
%s
    filter_chains:
    - transport_socket:
        name: envoy.transport_sockets.quic
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.quic.v3.QuicDownstreamTransport
          downstream_tls_context:
            common_tls_context:
              tls_certificates:
              - {certificate_chain: {filename: %s.crt}, private_key: {filename: %s.key}}
      filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: h3
          codec_type: HTTP3
          http3_protocol_options: {}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{match: {prefix: /}, route: {cluster: upstream, timeout: 0s}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: upstream
    connect_timeout: 5s
    circuit_breakers: {thresholds: [{max_connections: 4096, max_pending_requests: 4096, max_requests: 4096}]}
    load_assignment:
      cluster_name: upstream
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}}]}]
""" % (host.strip("[]"), port, textwrap.indent(options, " " * 6), certificate, certificate, upstream.server_port))
    if os.fork():
        os.execv(envoy, [envoy, "-c", str(home / "envoy.yaml"), "--use-dynamic-base-id", "--concurrency", "2", "-l", "warning"])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if file:
        threading.Thread(target=follow, args=(secret,), daemon=True).start()
    upstream.serve_forever()


main()
