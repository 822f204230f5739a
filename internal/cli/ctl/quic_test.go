package ctl_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/clitest"
	"github.com/ballast-lb/ballast/pkg/quiclb"
)

func TestConfigurationsOfServersAreMadeFromTheAgentsFile(t *testing.T) {
	run := t.TempDir()
	file := quiclb.File{Service: "h3", Config: 3, Algorithm: "single-pass", Key: []byte("0123456789abcdef"), ServerID: []byte{1, 2}, NonceLength: 14,
		ResetKey: make([]byte, 32), TokenKey: make([]byte, 32)}
	write := func(change func(f *quiclb.File)) {
		t.Helper()
		f := file
		change(&f)
		text, err := json.Marshal(&f)
		dir := api.IDDir(run, "default")
		if err == nil {
			err = os.MkdirAll(dir, 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "h3.json"), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	say := func(arguments ...string) (string, error) {
		return clitest.Run(append([]string{"ctl", "--run-dir", run, "quic", "config"}, arguments...)...)
	}
	refused := func(why string, arguments ...string) {
		t.Helper()
		if said, err := say(arguments...); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v: %q, %v, not %q", arguments, said, err, why)
		}
	}
	refused("ballast agent", "h3", "--for", "nginx")
	write(func(*quiclb.File) {})
	refused("here: h3", "h4", "--for", "nginx")
	refused("use one of aws, envoy, envoy-secret, nginx", "h3")
	refused("use one of", "h3", "--for", "haproxy")
	for program, lines := range map[string][]string{
		"nginx":        {"Environment=LD_PRELOAD=", "Environment=BALLAST_QUIC=" + filepath.Join(run, "quic", "default", "h3.json")},
		"envoy":        {"unencrypted_mode: false", "server_id: {inline_bytes: AQI=}", "expected_server_id_length: 2", "nonce_length_bytes: 14"},
		"envoy-secret": {"encryption_key: {inline_bytes: MDEyMzQ1Njc4OWFiY2RlZg==}", "configuration_version: {inline_bytes: Aw==}"},
	} {
		said, err := say("h3", "--for", program)
		if err != nil {
			t.Errorf("%s: %v", program, err)
		}
		for _, line := range lines {
			if !strings.Contains(said, line) {
				t.Errorf("%s: %q is not in\n%s", program, line, said)
			}
		}
		if secret := strings.Contains(said, "MDEyMzQ1"); secret != (program == "envoy-secret") {
			t.Errorf("%s shows the key: %v", program, secret)
		}
	}
	refused("plain ids of 8 bytes and config 0", "h3", "--for", "aws")
	write(func(f *quiclb.File) {
		f.Config, f.Algorithm, f.ServerID, f.NonceLength = 0, "plain", []byte{0, 0, 0, 0, 0, 0, 1, 2}, 8
	})
	if said, err := say("h3", "--for", "aws"); err != nil || said != "AWS_LBC_QUIC_SERVER_ID=AAAAAAAAAQI=\n" {
		t.Errorf("aws: %q, %v", said, err)
	}
	write(func(f *quiclb.File) { f.Algorithm, f.NonceLength = "four-pass", 17 })
	refused("may have 18 bytes", "h3", "--for", "envoy")
	write(func(f *quiclb.File) { f.NonceLength = 2 })
	refused("nonce", "h3", "--for", "envoy")
}
