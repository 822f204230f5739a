package ctl_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/cli/clitest"
	"github.com/ballast-lb/ballast/internal/pki"
)

func TestCertificatesAreMadeByCommands(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "fleet")
	for _, args := range [][]string{
		{"init", dir},
		{"issue", dir, "controller", "c1", "--address", "10.0.0.1"},
		{"issue", dir, "agent", "web-1", "--address", "10.0.1.1,2001:db8::1", "--dns", "web-1.example", "--days", "30"},
	} {
		if out, err := clitest.Run(append([]string{"ctl", "pki"}, args...)...); err != nil || !strings.Contains(out, "valid until") {
			t.Fatalf("%v: %s, %v", args, out, err)
		}
	}
	out, err := clitest.Run("ctl", "pki", "show", dir, "--json")
	var entries []pki.Entry
	if err != nil || json.Unmarshal([]byte(out), &entries) != nil || len(entries) != 3 {
		t.Fatalf("%s, %v", out, err)
	}
	if agent := entries[2]; agent.Role != pki.Agent || len(agent.Addresses) != 2 || len(agent.DNS) != 2 {
		t.Errorf("the agent's is %+v", agent)
	}
	if out, err = clitest.Run("ctl", "pki", "show", dir); err != nil || strings.Count(out, "\n") != 4 || !strings.Contains(out, "web-1.example") {
		t.Errorf("the table is %s, %v", out, err)
	}
	if _, err := pki.Load(dir, "c1", pki.Controller); err != nil {
		t.Error(err)
	}
}

func TestACertificateWithAControllersAddressIsAWarning(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "fleet")
	for _, c := range []struct {
		args string
		warn []string
	}{
		{"init " + dir, nil},
		{"issue " + dir + " agent web-1 --address 10.0.0.1,10.0.1.1", nil},
		{"issue " + dir + " controller c1 --address 10.0.0.1", []string{"WARNING: 10.0.0.1 is that of agent web-1, too: right if both run on one host"}},
		{"issue " + dir + " controller c2 --address 10.0.0.1 --dns c2.example", []string{"agent web-1"}},
		{"issue " + dir + " agent web-2 --address 10.0.1.1", nil}, // two agents are not about controllers
		{"issue " + dir + " lb lb1 --address 10.0.0.1 --dns c2.example", []string{"10.0.0.1 is that of controller c1", "10.0.0.1 is that of controller c2", "c2.example is that of controller c2"}},
		{"issue " + dir + " agent web-1 --address 10.0.1.1 --force", nil},
	} {
		out, err := clitest.Run(append([]string{"ctl", "pki"}, strings.Fields(c.args)...)...)
		if err != nil || strings.Count(out, "WARNING: ") != len(c.warn) {
			t.Errorf("%s: %s, %v", c.args, out, err)
		}
		for _, warn := range c.warn {
			if !strings.Contains(out, warn) {
				t.Errorf("%s: %q, without %q", c.args, out, warn)
			}
		}
	}
}

func TestCommandsForCertificatesSayWhatToDo(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		wanted string
		args   []string
	}{
		{"ballast ctl pki init", []string{"show", dir}},
		{"ballast ctl pki init", []string{"issue", dir, "lb", "lb1"}},
		{"use one of", []string{"issue", dir, "king", "k"}},
		{"use an IPv4 or IPv6 address", []string{"issue", dir, "lb", "lb1", "--address", "lb1"}},
		{"--days 0", []string{"init", dir, "--days", "0"}},
	} {
		if _, err := clitest.Run(append([]string{"ctl", "pki"}, test.args...)...); err == nil || !strings.Contains(err.Error(), test.wanted) {
			t.Errorf("%v: %v, want %q", test.args, err, test.wanted)
		}
	}
}

func TestCertificatesAreRevokedByNameSerialAndFile(t *testing.T) {
	memory := &apitest.Memory{}
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	ctl := &terminal{t, memory, []string{"ctl", "--socket", path}}
	dir := filepath.Join(t.TempDir(), "fleet")
	for _, args := range [][]string{{"init", dir}, {"issue", dir, "agent", "web-1"}} {
		if out, err := clitest.Run(append([]string{"ctl", "pki"}, args...)...); err != nil {
			t.Fatal(out, err)
		}
	}
	certificate, err := pki.ReadCertificate(filepath.Join(dir, "web-1.crt"))
	if err != nil {
		t.Fatal(err)
	}
	serial := pki.SerialOf(certificate)
	ctl.expect("pki show "+dir, serial)
	ctl.expect("pki list", "no certificate is revoked")
	ctl.expect("--json pki list", "[]")
	ctl.refuse("pki revoke web-1", "--yes")
	ctl.refuse("pki revoke nobody.crt --yes", "nobody.crt")
	ctl.expect("pki revoke web-1 --yes --reason stolen", "revoked: all certificates of web-1 that were issued up to")
	ctl.expect("pki revoke "+strings.ToUpper(serial)+" --yes", "revoked: the certificate with serial number "+serial)
	ctl.expect("pki revoke "+dir+"/web-1.crt --yes", "revoked: the certificate of agent web-1 with serial number "+serial)
	ctl.expect("pki list", "web-1", "all issued before", "stolen", serial)
	ctl.expect("--json pki list", `"serial": "`+serial+`"`, `"reason": "stolen"`, `"role": "agent"`)
}
