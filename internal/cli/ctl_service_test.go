package cli_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/cli"
)

// daemonThatSays serves one answer, and remembers what it was last asked.
func daemonThatSays(t *testing.T, answer string) (socket string, asked *string) {
	t.Helper()
	socket, asked = filepath.Join(t.TempDir(), "ctl.sock"), new(string)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*asked = strings.TrimSpace(r.Method + " " + r.URL.Path + " " + string(body))
		io.WriteString(w, answer)
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return socket, asked
}

func run(arguments ...string) (output string, err error) {
	var out bytes.Buffer
	root := cli.Root("test")
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(arguments)
	err = root.Execute()
	return out.String(), err
}

func TestServiceCommandsSendWhatIsGivenAndNothingElse(t *testing.T) {
	socket, asked := daemonThatSays(t, `{"changes":["done"]}`)
	for line, want := range map[string]string{
		"service add web --vip 198.51.100.10 --port 80,443": `POST /v1/services {"name":"web","ports":[80,443],"vip":"198.51.100.10"}`,
		"service add dns --vip 2001:db8::53 --port 53 --protocol udp --dispatch hash --affinity hash --fallback hash --forward gue" +
			" --return direct --cookie-bits 12 --table-slots 251": `POST /v1/services {"affinity":"hash","cookie_bits":12,"dispatch":"hash",` +
			`"fallback":"hash","forward":"gue","name":"dns","ports":[53],"protocol":"udp","return":"direct","table_slots":251,"vip":"2001:db8::53"}`,
		"service set web --dispatch hash": `PATCH /v1/services/web {"dispatch":"hash"}`,
		"service remove web":              `DELETE /v1/services/web`,
		"counters reset":                  `DELETE /v1/counters`,
	} {
		output, err := run(append([]string{"ctl", "--socket", socket}, strings.Fields(line)...)...)
		if err != nil || output != "done\n" || *asked != want {
			t.Errorf("%s: asked %s, not %s; printed %q, %v", line, *asked, want, output, err)
		}
	}
	if output, err := run("ctl", "--socket", socket, "--json", "counters", "reset"); err != nil || !strings.Contains(output, `"changes": [`) {
		t.Errorf("--json printed %q, %v", output, err)
	}
}

func TestServiceCommandsRefuseWhatTheyCannotRead(t *testing.T) {
	for line, want := range map[string]string{
		"service add web --port 80":                       `"vip" not set`,
		"service add web --vip 198.51.100.10":             `"port" not set`,
		"service add web --vip 198.51.100 --port 80":      "198.51.100",
		"service add web --vip 198.51.100.10 --port http": "numbers from 1 to 65535",
		"service set web":                                 "nothing to change",
		"service set web --dispatch best":                 "use one of hash, maglev, rr, wrr, p2c",
		"service set web --table-slots many":              "many",
		"service set --dispatch rr":                       "accepts 1 arg",
		"counters reset web":                              "unknown command",
	} {
		_, err := run(append([]string{"ctl", "--socket", "/nonexistent"}, strings.Fields(line)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, wanted a refusal that says %q", line, err, want)
		}
	}
}
