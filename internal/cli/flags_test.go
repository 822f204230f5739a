package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/cli"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

// Nothing is opened, made or attached for a command line that cannot be right.
func TestFlagsThatCannotBeRightAreRefusedBeforeAnythingIsMade(t *testing.T) {
	for line, want := range map[string]string{
		"lb --controller 10.0.0.21:notaport":           `--controller "10.0.0.21:notaport": use HOST:PORT`,
		"lb --controller 10.0.0.21 --listen x":         "--listen",
		"agent --controller 10.0.0.21 --metrics x":     "--metrics",
		"lb --controller :6443":                        "use HOST:PORT",
		"lb --controller c1:6443,c2:0":                 `"c2:0"`,
		"lb -f x.yaml --linger -5s":                    "--linger -5s: use 0s or more",
		"lb -f x.yaml --quarantine -1ns":               "--quarantine -1ns",
		"lb -f x.yaml --metrics 99999":                 `--metrics "99999": use ADDRESS:PORT`,
		"lb -f x.yaml --metrics 127.0.0.1:99999":       "a port from 1 to 65535",
		"lb -f x.yaml --listen here":                   `--listen "here"`,
		"lb -f x.yaml --instance ../../x":              `--instance "../../x"`,
		"lb --detach --instance ../../x":               `--instance "../../x"`,
		"lb --detach --instance .":                     `--instance "."`,
		"lb -f x.yaml --max-slots 4294967296":          "out of range",
		"lb -f x.yaml --xdp-mode fast":                 "use auto, native or generic",
		"lb -f x.yaml --controller c1:6443":            "either",
		"agent --controller 10.0.0.21:notaport":        "use HOST:PORT",
		"agent -f x.yaml --instance a/b":               `--instance "a/b"`,
		"agent --detach --instance ..":                 `--instance ".."`,
		"agent -f x.yaml --metrics 99999":              `--metrics "99999"`,
		"controller --linger -5s --data-dir D":         "--linger -5s",
		"controller --listen 6443 --data-dir D":        `--listen "6443"`,
		"controller --public 6443 --data-dir D":        `--public "6443"`,
		"controller":                                   "name one store",
		"controller --data-dir D --etcd http://a":      "name one store",
		"ctl --controller 10.0.0.21:notaport servers":  "use HOST:PORT",
		"ctl server drain web s1 --deadline -5m":       "--deadline -5m0s",
		"ctl server drain web s1 --wait --timeout -5m": "--timeout -5m0s",
	} {
		dir := t.TempDir()
		root := cli.Root("test")
		arguments := strings.Fields(line)
		if strings.HasPrefix(line, "lb") || strings.HasPrefix(line, "agent") || strings.HasPrefix(line, "controller") {
			arguments = append(arguments, "--run-dir", filepath.Join(dir, "run"))
		}
		root.SetArgs(arguments)
		cmd, err := root.ExecuteContextC(t.Context())
		var said bytes.Buffer
		if status := command.Finish(nil, cmd, err, &said); status != command.StatusUsage || !strings.Contains(said.String(), want) {
			t.Errorf("ballast %s: status %d, said %q, which lacks %q", line, status, said.String(), want)
		}
		if made, _ := os.ReadDir(dir); len(made) > 0 {
			t.Errorf("ballast %s: has made %s", line, made[0].Name())
		}
	}
}
