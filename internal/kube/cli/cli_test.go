package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/fleettest"
	mapping "github.com/ballast-lb/ballast/internal/machine/kube"
	"github.com/ballast-lb/ballast/internal/pki"
)

func TestConfigurationIsStrict(t *testing.T) {
	for text, want := range map[string]string{
		"pools:\n  - {name: a, addresses: [192.0.2.0/30, \"2001:db8::/126\"], by_request: true}\nclass: example.com/lb\nprefix: prod\n": "",
		"":                                    "the file is empty: give pools",
		"class: ballast.io/l4\n":              ":1: pools: missing: ",
		"pools: []\n":                         "pools: ",
		"pols: []\n":                          ":1: pols: unknown key: did you mean pools?",
		"pools: [{name: a, addreses: [x]}]\n": "addreses: unknown key: did you mean addresses?",
		"pools: [{name: a, addresses: [192.0.2.1/30]}]\n":                                      ":1: pools[0].addresses[0]: 192.0.2.1/30 has bits behind its length: use 192.0.2.0/30",
		"pools:\n  - {name: a, addresses: [192.0.2.1], by_request: maybe}\n":                   ":2: pools[0].by_request: ",
		"pools:\n  - {name: a, addresses: [192.0.2.1]}\n  - {name: b, addresses: [192.0.2.1]}": ":3: pools[1].addresses[0]: ",
		"pools: [{name: a, addresses: [192.0.2.1]}]\nclass: lb\n":                              ":2: class: \"lb\" is no load balancer class",
		"pools: [{name: a, addresses: [192.0.2.1]}]\nprefix: a:b\n":                            ":2: prefix: ",
	} {
		file := filepath.Join(t.TempDir(), "kube.yaml")
		fleettest.Require(t, os.WriteFile(file, []byte(text), 0o600))
		o, err := readConfig(file)
		if want == "" {
			if err != nil || len(o.Pools) != 1 || !o.Pools[0].ByRequest || len(o.Pools[0].Ranges) != 2 || o.Class != "example.com/lb" || o.Prefix != "prod" {
				t.Errorf("%q: %+v, %v", text, o, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), file+":") {
			t.Errorf("%q: %v, not %s", text, err, want)
		}
	}
	if _, err := readConfig("/none"); err == nil {
		t.Error("a file that is not there is read")
	}
}

func TestFlagsSayWhatTheFileSays(t *testing.T) {
	pools, err := parsePools([]string{"192.0.2.0/30,2001:db8::/126", "special=198.51.100.1", "special=198.51.100.2-198.51.100.3"})
	if err != nil || len(pools) != 2 || pools[0].Name != "default" || len(pools[0].Ranges) != 2 || len(pools[1].Ranges) != 2 {
		t.Errorf("have %+v, %v", pools, err)
	}
	if err := check(&mapping.Options{Pools: pools, Class: mapping.DefaultClass}); err != nil {
		t.Error(err)
	}
}

// Mistakes on the command line end with status 2, before anything is opened.
func TestWrongCommandLinesSayWhatToDo(t *testing.T) {
	authority := fleettest.NewAuthority(t)
	authority.Issue(pki.Ctl, "me")
	dir := t.TempDir()
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	pool := "--pool=192.0.2.0/30"
	for line, want := range map[string]string{
		"":                         "pools: missing",
		pool:                       `required flag "controller" not set`,
		pool + " --controller=":    `required flag "controller" not set`,
		pool + " --controller=a:0": "--controller",
		pool + " --pool=192.0.2.1": "have addresses in common",
		pool + " --config=x":       "--pool and --config are two places for one thing",
		pool + " --resync=1ms":     "--resync 1ms: use 1s or more",
		pool + " --listen=x":       `--listen "x"`,
		pool + " --controller=10.0.0.1 --tls-dir=" + authority.Dir: "there is no certificate for role source",
		"x": "unknown command",
	} {
		var stderr bytes.Buffer
		if status := Main("1.2.3", strings.Fields(line), &stderr); status == 0 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: status %d, %s, not %s", line, status, stderr.String(), want)
		}
	}
	authority.Issue(pki.Source, "kube")
	var stderr bytes.Buffer
	if status := Main("1.2.3", []string{pool, "--controller=10.0.0.1", "--tls-dir=" + authority.Dir}, &stderr); status != 2 || !strings.Contains(stderr.String(), "give --kubeconfig") {
		t.Errorf("status %d, %s", status, stderr.String())
	}
}

// The help says how the fields of a configuration file and the annotations are called; they must be those that are read.
func TestTheHelpShowsWhatIsRead(t *testing.T) {
	root := Root("1.2.3")
	found := regexp.MustCompile(`(?s)--config is a file.*?\n(  class:.*?)\n\n`).FindStringSubmatch(root.Long)
	if found == nil {
		t.Fatal("the help shows no file")
	}
	file := filepath.Join(t.TempDir(), "kube.yaml")
	fleettest.Require(t, os.WriteFile(file, []byte(regexp.MustCompile(`(?m)^  `).ReplaceAllString(found[1], "")+"\n"), 0o600))
	if o, err := readConfig(file); err != nil || len(o.Pools) != 2 || o.Class != mapping.DefaultClass {
		t.Errorf("%+v, %v", o, err)
	}
	for _, text := range []string{mapping.AnnotationPrefix + "pool", mapping.AnnotationPrefix + "sharing-key", mapping.AnnotationPrefix + "vips"} {
		if !strings.Contains(root.Long, text) {
			t.Errorf("the help does not say %s", text)
		}
	}
	examples := 0
	for line := range strings.Lines(root.Example) {
		if words := strings.Fields(line); len(words) > 0 {
			examples++
			if err := Root("1.2.3").ParseFlags(words[1:]); err != nil || words[0] != "ballast-kube" {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	if examples < 3 {
		t.Errorf("%d examples", examples)
	}
	for line := range strings.Lines(root.Long + root.Example) {
		if len(strings.TrimRight(line, "\n")) > 132 {
			t.Errorf("a line of %d columns: %s", len(line), line)
		}
	}
}
