package ctl_test

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/cli/clitest"
)

// daemonThatSays gives one answer to everything, and remembers what it was last asked.
func daemonThatSays(t *testing.T, contentType string, answer []byte) (socket string, asked func() (request string, body []byte)) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "ctl.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var request string
	var body []byte
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		request = r.Method + " " + r.URL.Path
		w.Header().Set("Content-Type", contentType)
		w.Write(answer)
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return socket, func() (string, []byte) { return request, body }
}

func TestServiceCommandsSendWhatIsGivenAndNothingElse(t *testing.T) {
	answer, err := proto.Marshal(&ballastv1.ChangeResponse{Changes: []string{"done"}})
	if err != nil {
		t.Fatal(err)
	}
	socket, asked := daemonThatSays(t, "application/proto", answer)
	for line, want := range map[string]string{
		"service add web --vip 198.51.100.10 --port 80,443": `{"service": {"name": "web", "vip": "198.51.100.10", "ports": [80, 443]}, "exists": false}`,
		"service add dns --vip 2001:db8::53 --port 53 --protocol udp --dispatch hash --affinity hash --fallback hash --forward gue" +
			" --return direct --cookie-bits 12 --table-slots 251": `{"service": {"name": "dns", "vip": "2001:db8::53", "protocol": "udp", "ports": [53], "dispatch": "hash", ` +
			`"affinity": "hash", "fallback": "hash", "cookie_bits": 12, "forward": "gue", "return": "direct", "table_slots": 251}, "exists": false}`,
		"service set web --affinity table --table-entries 64 --table-index-bits 5 --table-node-bits 0 --table-idle-timeout 90s --table-packet-limit 0 --table-scrubber=": `{"service":
			{"name": "web", "affinity": "table", "table": {"entries": 64, "index_bits": 5, "node_bits": 0, "idle_timeout": "90s", "packet_limit": 0, "scrubber": ""}}, "exists": true}`,
		"service set web --session tls --session-clients 0": `{"service": {"name": "web", "session": "tls", "session_clients": 0}, "exists": true}`,
		"service set web --dispatch hash":                   `{"service": {"name": "web", "dispatch": "hash"}, "exists": true}`,
		"service set web --load-source cpu --load-interval 100ms --load-classes 0 --queue-limit 7 --load-endpoint http://:80/l": `{"service": {"name": "web",
			"load": {"source": "cpu", "interval": "0.100s", "classes": 0, "queue_limit": 7, "endpoint": "http://:80/l"}}, "exists": true}`,
		"service set web --check exec --check-interval 3s --check-timeout 1s --check-rise 1 --check-fall 2 --check-port 8080 --check-path /x --check-host h" +
			" --check-service s --check-command /bin/check --all-down none --unhealthy-deadline 0s": `{"service": {"name": "web", "health": {"check": "exec", "interval": "3s",
			"timeout": "1s", "rise": 1, "fall": 2, "port": 8080, "path": "/x", "host": "h", "service": "s", "command": ["/bin/check"], "all_down": "none", "deadline": "0s"}}, "exists": true}`,
	} {
		output, err := clitest.Run(append([]string{"ctl", "--socket", socket}, strings.Fields(line)...)...)
		request, body := asked()
		var got, wanted ballastv1.PutServiceRequest
		if err := proto.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		if err := protojson.Unmarshal([]byte(want), &wanted); err != nil {
			t.Fatal(err)
		}
		if err != nil || output != "done\n" || request != "POST /ballast.v1.Fleet/PutService" || !proto.Equal(&got, &wanted) {
			t.Errorf("%s: asked %s %v, not %v; printed %q, %v", line, request, &got, &wanted, output, err)
		}
	}
}

func TestCountersAreResetByOneRequest(t *testing.T) {
	socket, asked := daemonThatSays(t, "application/json", []byte(`{"changes":["done"]}`))
	output, err := clitest.Run("ctl", "--socket", socket, "counters", "reset")
	if request, _ := asked(); err != nil || output != "done\n" || request != "DELETE /v1/counters" {
		t.Errorf("asked %s; printed %q, %v", request, output, err)
	}
	if output, err := clitest.Run("ctl", "--socket", socket, "--json", "counters", "reset"); err != nil || !strings.Contains(output, `"changes": [`) {
		t.Errorf("--json printed %q, %v", output, err)
	}
}

func TestServiceCommandsRefuseWhatTheyCannotRead(t *testing.T) {
	for line, want := range map[string]string{
		"service add web --port 80":                       `"vip" not set`,
		"service add web --vip 198.51.100.10":             `"port" not set`,
		"service add web --vip 198.51.100 --port 80":      "198.51.100",
		"service add web --vip 198.51.100.10 --port http": "number from 1 to 65535",
		"service set web":                                 "nothing to change",
		"service set web --dispatch best":                 "use one of hash, maglev, rr, wrr, p2c",
		"service set web --check ping":                    "use one of none, tcp, http",
		"service set web --load-interval soon":            "write it like 250ms",
		"service set web --table-slots many":              "many",
		"service set web --table-slots 0":                 "0 is out of range",
		"service set web --affinity tables":               "cookie, table, local-table",
		"service set web --table-entries 0":               "use 64 to 1073741824",
		"service set web --load-interval 1h":              "use 10ms to 10s",
		"server add web 10.0.0.1 --weight 257":            "use 0 to 256",
		"service set web --table-packet-limit -1":         "use a decimal number from 0 to 60000",
		"node add lb1":                                    "[tier bgp-as l2-interface]",
		"node add lb1 --tier third":                       "use one of first, second",
		"node add lb1 --tier second --address x":          "is not an IP address",
		"node health":                                     "nothing to change",
		"node drain":                                      "NAME is missing",
		"service set --dispatch rr":                       "NAME is missing",
		"counters reset web":                              "one too many",
	} {
		_, err := clitest.Run(append([]string{"ctl", "--socket", "/nonexistent"}, strings.Fields(line)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, wanted a refusal that says %q", line, err, want)
		}
	}
}
