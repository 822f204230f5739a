package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
)

const minimal = `keys:
  placement: 000102030405060708090a0b0c0d0e0f
  current: 1
  cookie:
    1: 00112233445566778899aabbccddeeff
services:
  - name: web
    vip: 198.51.100.10
    ports: [80]
    servers:
      - name: s1
        address: 10.1.0.11
        id: 1
      - name: s2
        address: 10.1.0.12
        id: 2
      - name: s3
        address: 10.1.0.13
        id: 3
`

func mustParse(t testing.TB, text string) model.Fleet {
	t.Helper()
	fleet, err := Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return fleet
}

func TestAByteOrderMarkSaysNothing(t *testing.T) {
	if fleet := mustParse(t, "\ufeff"+minimal); len(fleet.Services) != 1 {
		t.Errorf("read %d services", len(fleet.Services))
	}
}

func TestLoadReadsEveryKey(t *testing.T) {
	file, err := Load("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f := file.Fleet
	web, legacy, dns := f.Services[0], f.Services[1], f.Services[2]
	if f.Keys.Current != 2 || f.Keys.Cookie[2][0] != 0x10 || f.Keys.Placement[15] != 0x0f || len(f.Keys.Cookie) != 2 {
		t.Errorf("keys %v", f.Keys)
	}
	if web.Dispatch != model.DispatchWRR || web.Forward != model.ForwardGUE || web.CookieBits != 12 || web.TableSlots != 8191 ||
		fmt.Sprint(web.Ports) != "[80 443]" || web.Servers[0].State != model.StateDraining || web.Servers[0].Weight != 5 ||
		web.Servers[1].Weight != 0 || web.Servers[1].Address.String() != "2001:db8::12" {
		t.Errorf("web %+v", web)
	}
	if legacy.Return != model.ReturnThrough || legacy.Forward != model.ForwardNAT || legacy.CookieBits != 8 ||
		legacy.Servers[0].Port != 8080 || legacy.Servers[0].Name != "10.1.0.21" || legacy.Servers[0].Weight != 1 {
		t.Errorf("legacy %+v", legacy)
	}
	if dns.Affinity != model.AffinityHash || dns.Dispatch != model.DispatchMaglev || dns.Servers[1].ID != 2 {
		t.Errorf("dns %+v", dns)
	}
	shop, game := f.Services[3], f.Services[4]
	if want := (model.Table{Entries: 4096, IndexBits: 5, NodeBits: 4, IdleTimeout: model.Duration(90 * time.Second), PacketLimit: 1000, Scrubber: "wash"}); shop.Table != want ||
		shop.Affinity != model.AffinityTable || shop.CookieBits != 16 {
		t.Errorf("shop %+v", shop)
	}
	if game.Affinity != model.AffinityLocal || game.Dispatch != model.DispatchLeast || game.Servers[0].ID != 1 {
		t.Errorf("game %+v", game)
	}
	if len(f.Nodes) != 4 || f.Nodes[0].Name != "lb1" || f.Nodes[0].Tier != model.TierFirst || f.Nodes[1].Address.String() != "192.0.2.2" || f.Nodes[1].ID != 1 ||
		f.Nodes[2].State != model.StateDraining || f.NodeHealth.Path != "/metrics" || f.NodeHealth.Fall != 3 {
		t.Errorf("nodes %+v, %+v", f.Nodes, f.NodeHealth)
	}
	if b := f.Nodes[3].BGP; f.Nodes[3].Tier != 0 || b.AS != 64600 || fmt.Sprint(b.Neighbors) != "[192.0.2.250 2001:db8::250 as 4200000000]" || b.ASOf(b.Neighbors[0]) != 64512 ||
		b.Keepalive != model.Duration(3*time.Second) || b.RestartTime != model.DefaultRestartTime || fmt.Sprint(b.Communities) != "[64512:100 no-export]" || b.BFD.Multiplier != 3 {
		t.Errorf("bgp %+v", b)
	}
	if fmt.Sprint(f.TunnelsFrom) != "[192.0.2.1 2001:db8::1]" {
		t.Errorf("tunnels from %s", f.TunnelsFrom)
	}
	text, _ := os.ReadFile("testdata/full.yaml")
	if file.SHA256 != Sum(text) || len(file.SHA256) != 64 {
		t.Errorf("sum %s", file.SHA256)
	}
}

func TestMarshalSurvivesParse(t *testing.T) {
	file, err := Load("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text, err := Marshal(file.Fleet)
	if err != nil {
		t.Fatal(err)
	}
	if golden, err := os.ReadFile("testdata/written.yaml"); err != nil || string(golden) != string(text) {
		t.Errorf("testdata/written.yaml is not what is written now, %v:\n%s", err, text)
	}
	back, err := Parse("marshalled.yaml", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if !reflect.DeepEqual(back, file.Fleet) {
		t.Errorf("have %+v\nwant %+v\n%s", back, file.Fleet, text)
	}
	again, err := Marshal(back)
	if err != nil || string(again) != string(text) {
		t.Errorf("not canonical: %v\n%s\n%s", err, text, again)
	}
}

func TestEmptyFleetSurvivesMarshalAndParse(t *testing.T) {
	text, err := Marshal(model.Fleet{})
	if err != nil {
		t.Fatal(err)
	}
	if fleet := mustParse(t, string(text)); !reflect.DeepEqual(fleet, model.Fleet{}) {
		t.Errorf("%s became %+v", text, fleet)
	}
}

// Every mistake is made in the minimal file by replacing old by new.
func TestMistakesAreRefusedWithFileLineAndKey(t *testing.T) {
	cases := []struct{ old, new, want string }{
		{"ports: [80]", "prots: [80]", "test.yaml:9: services[0].prots: unknown key: did you mean ports?"},
		{"ports: [80]", "colour: [80]", "test.yaml:9: services[0].colour: unknown key: use one of affinity, allow, announce, choices, cookie_bits, destinations, dispatch, fallback, forward, health, load, mptcp, name, owner, placement, ports, predecessor, protocol, quic, return, servers, session, session_clients, slow_start, source_limit, syn_limit, syn_proxy, table, table_slots, vip"},
		{"ports: [80]", "ports: [80]\n    ports: [81]", "test.yaml:10: services[0].ports: repeated, first on line 9: remove one of them"},
		{"ports: [80]", "ports: [80]\n    allow: []", "test.yaml:10: services[0].allow: empty: name some, or remove the key: then it is as if all were listed"},
		{"ports: [80]", "ports: [80]\n    allow: [all]", "test.yaml:10: services[0].allow[0]: \"all\" is no prefix of addresses: write it like 192.0.2.0/24 or 2001:db8::/32"},
		{"ports: [80]", "dispatch: rr", "test.yaml:7: services[0].ports: 0 ports: give 1 to 16 ports"},
		{"ports: [80]", "ports: 80", "test.yaml:9: services[0].ports: a single value instead of a list: write a list: [a, b] or lines that begin with `-`"},
		{"ports: [80]", "ports: [80, 65536]", `test.yaml:9: services[0].ports[1]: 65536 is out of range: use 1 to 65535`},
		{"ports: [80]", "ports: [80, 90-85]", `test.yaml:9: services[0].ports[1]: "90-85" is no range of ports: write it as 30000-32767, the smaller port first`},
		{"ports: [80]", "ports: some", `test.yaml:9: services[0].ports: a single value instead of a list: write a list: [a, b] or lines that begin with ` + "`-`"},
		{"ports: [80]", "ports: [0x50]", `test.yaml:9: services[0].ports[0]: "0x50" is not such a number: use a decimal number from 1 to 65535`},
		{"ports: [80]", "ports:", "test.yaml:9: services[0].ports: nothing instead of a list"},
		{"ports: [80]", "ports: [80]\n    cookie_bits: 0", "test.yaml:10: services[0].cookie_bits: 0 is out of range"},
		{"ports: [80]", "ports: [80]\n    dispatch: random", `test.yaml:10: services[0].dispatch: unknown value "random": use one of hash, maglev, rr, wrr, p2c`},
		{"ports: [80]", "ports: [80]\n    forward: nat", "test.yaml:10: services[0].forward: nat with return: direct would answer"},
		{"ports: [80]", "ports: [80]\n    name: other", "test.yaml:10: services[0].name: repeated"},
		{"ports: [80]", "ports: [80", "test.yaml:"},
		{"ports: [80]", "ports: *p", `test.yaml:9: "*p" is not supported here`},
		{"ports: [80]", "ports: [[[[[[[[[[[[[[[[[[[[80]]]]]]]]]]]]]]]]]]]]", "test.yaml:9: nested too deeply"},
		{"        id: 2", "        id: 1", "test.yaml:16: services[0].servers[1].id: 1 is the id of server s1: the next free id is 4"},
		{"        id: 2\n", "", "test.yaml:14: services[0].servers[1].id: missing: a service with affinity cookie needs an id that stays with the server: the next free id is 4"},
		{"        id: 2", "        id: 0", "test.yaml:16: services[0].servers[1].id: 0 is out of range: use 1 to 32767"},
		{"        id: 2", "        id: two", `test.yaml:16: services[0].servers[1].id: "two" is not such a number`},
		{"10.1.0.12", "10.1.0", `test.yaml:15: services[0].servers[1].address: "10.1.0" is not an IP address`},
		{"000102030405060708090a0b0c0d0e0f", "00", "test.yaml:2: keys.placement: not a key of 32 hexadecimal digits"},
		{"current: 1", "current: 9", "test.yaml:3: keys.current: epoch 9 has no key under keys.cookie: use 1"},
		{"    1: 0011", "    one: 0011", `test.yaml:5: keys.cookie.one: "one" is not an epoch`},
		{"    1: 0011", "    01: 0011", `test.yaml:5: keys.cookie.01: "01" is not an epoch`},
		{"services:", "service:", "test.yaml:6: service: unknown key: did you mean services?"},
		{"ports: [80]", "ports: [80]\n    table: {entries: 64}", "test.yaml:10: services[0].table: affinity cookie keeps no such table: keep index_bits and node_bits alone, which leave room in cookies, or use affinity: table"},
		{"ports: [80]", "ports: [80]\n    affinity: table\n    table:\n      index_bits: 0", "test.yaml:12: services[0].table.index_bits: 0 is out of range"},
		{"ports: [80]", "ports: [80]\n    affinity: table\n    table:\n      packet_limit: 60001", "test.yaml:12: services[0].table.packet_limit: 60001 is out of range: use 0 to 60000"},
		{"ports: [80]", "ports: [80]\n    session_clients: 3", "test.yaml:10: services[0].session_clients: without session: tls there are no sessions to limit: remove it (ctl: --session-clients 16), or use session: tls"},
		{"ports: [80]", "ports: [80]\n    session: tls\n    session_clients: 33", "test.yaml:11: services[0].session_clients: 33 is out of range: use 0 to 32"},
		{"ports: [80]", "ports: [80]\n    affinity: table\n    table: {size: 9}", "test.yaml:11: services[0].table.size: unknown key: use one of entries, idle_timeout, index_bits, node_bits, packet_limit, scrubber"},
		{"ports: [80]", "ports: [80]\n    affinity: table\n    table: {idle_timeout: soon}", `test.yaml:11: services[0].table.idle_timeout: "soon" is not a duration`},
		{"services:", "nodes: [{name: lb1, tier: third}]\nservices:", `test.yaml:6: nodes[0].tier: unknown value "third": use one of first, second`},
		{"ports: [80]", "ports: [80]\n    health: {check: tcp, interval: 1ns}", "test.yaml:10: services[0].health.interval: 1ns is out of range: use 10ms to 1h"},
		{"ports: [80]", "ports: [80]\n    health: {check: tcp, interval: 1s, timeout: 2s}", "test.yaml:10: services[0].health.timeout: 2s is longer than the interval of 1s: make it shorter"},
		{"        id: 2", "        id: 2\n        weight: 300", "test.yaml:17: services[0].servers[1].weight: 300 is out of range: use 0 to 256"},
		{"services:", "nodes:\n  - name: lb1\n    tier: first\n    id: 1\nservices:", "test.yaml:9: nodes[0].id: only nodes of the second tier have one: remove it, or use tier: second"},
		{"services:", "nodes:\n  - name: lb1\n    tier: second\n    id: 0\nservices:", "test.yaml:9: nodes[0].id: 0 is out of range"},
		{"services:", "nodes:\n  - tier: second\n    name: lb1\n    address: 10.1.0.11\n    id: 1\nservices:", "test.yaml:9: nodes[0].address: 10.1.0.11 is the address of server s1 of service web"},
		{"services:", "node_health:\n  check: tcp\nservices:", "test.yaml:6: node_health: there are no nodes of the second tier to check: remove it"},
		{minimal, "", "test.yaml:1: the file is empty: write `services: []` to remove every service"},
		{minimal, "keys: {}", "test.yaml:1: services: missing: write `services: []` to remove every service"},
		{minimal, "services:\n", "test.yaml:1: services: nothing instead of a list"},
		{minimal, "just text", "test.yaml:1: a single value instead of a mapping"},
		{minimal, "services: []\n---\nservices: []\n", "test.yaml:3: the file has several documents"},
	}
	for _, c := range cases {
		t.Run(c.new, func(t *testing.T) {
			text := strings.Replace(minimal, c.old, c.new, 1)
			if text == minimal {
				t.Fatalf("%q is not in the file", c.old)
			}
			_, err := Parse("test.yaml", []byte(text))
			if err == nil {
				t.Fatalf("accepted:\n%s", text)
			}
			for line := range strings.Lines(err.Error()) {
				if strings.HasPrefix(line, c.want) {
					return
				}
			}
			t.Errorf("have %v\nwant %s", err, c.want)
		})
	}
}

func TestAllMistakesAreReportedInTheOrderOfTheLines(t *testing.T) {
	text := strings.NewReplacer("id: 1", "id: x", "current: 1", "current: y", "ports", "prots").Replace(minimal)
	_, err := Parse("test.yaml", []byte(text))
	if lines := strings.Split(fmt.Sprint(err), "\n"); len(lines) != 3 || !strings.HasPrefix(lines[0], "test.yaml:3:") || !strings.HasPrefix(lines[2], "test.yaml:13:") {
		t.Errorf("have %v", err)
	}
	var place *Error
	if !errors.As(err, &place) || place.Line != 3 || place.Reason.Path != "keys.current" {
		t.Errorf("have %+v", place)
	}
}

func TestErrorsNeverShowKeys(t *testing.T) {
	text := strings.Replace(minimal, "00112233445566778899aabbccddeeff", "secret12233445566778899aabbccddee", 1)
	if _, err := Parse("test.yaml", []byte(text)); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("have %v", err)
	}
}

func TestAFileThatIsTooLargeIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large.yaml")
	if err := os.WriteFile(path, make([]byte, MaxBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("have %v", err)
	}
}

func TestAMissingFileIsToldApart(t *testing.T) {
	if _, err := Load("testdata/none.yaml"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("have %v", err)
	}
}

func TestNetworkFunctionsHaveNoPortsInWrittenConfigurations(t *testing.T) {
	keys, _, _ := strings.Cut(minimal, "services:")
	text := []byte(keys + "services:\n  - {name: gateway, protocol: any, destinations: 0.0.0.0/0, servers: [{name: nat1, address: 10.30.1.1, id: 1}]}\n")
	fleet, err := Parse("functions.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	written, err := Marshal(fleet)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Parse("written.yaml", written)
	if err != nil {
		t.Fatalf("%v\n%s", err, written)
	}
	if !reflect.DeepEqual(back.Services, fleet.Services) {
		t.Errorf("have %+v\nwant %+v\n%s", back.Services, fleet.Services, written)
	}
}

func TestServicesWithoutServersSurviveMarshalAndParse(t *testing.T) {
	keys, _, _ := strings.Cut(minimal, "services:")
	fleet, err := Parse("none.yaml", []byte(keys+"services:\n  - {name: web, vip: 192.0.2.10, ports: [80]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	written, err := Marshal(fleet)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := Parse("written.yaml", written); err != nil || len(back.Services) != 1 || len(back.Services[0].Servers) != 0 {
		t.Errorf("%v, %+v\n%s", err, back.Services, written)
	}
}

func FuzzParseNeverPanicsAndMarshalSurvives(f *testing.F) {
	full, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{minimal, string(full), "", "services: []", "a: &a [*a]", "? a\n: b", "- - - - a", "{[}", "services: [{}]",
		"services:\n- servers: [~]", "keys: {cookie: {1: 2}}", "\xff\xfe", "a: |\n b", "!!binary x", "<<: {}", "---\n...\n---", "services: !!x []"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		parsed, err := Parse("fuzz.yaml", text)
		if err != nil {
			return
		}
		written, err := Marshal(parsed)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Parse("again.yaml", written)
		if err != nil {
			t.Fatalf("%v\n%s", err, written)
		}
		if changes := fleet.Diff(parsed, back); len(changes) > 0 {
			t.Errorf("marshalling changed %q\n%s", changes, written)
		}
	})
}

// Whoever opens a pipe waits until somebody writes to it.
//
// Promise: A file that is invalid or a pipe is refused as a whole, with file, line and key.
// Also held by TestMistakesAreRefusedWithFileLineAndKey.
func TestWhatIsNoRegularFileIsRefusedAtOnce(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "ballast.yaml")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 1)
	go func() {
		_, err := Load(pipe)
		refused <- err
	}()
	select {
	case err := <-refused:
		if err == nil || !strings.Contains(err.Error(), pipe+": not a regular file") {
			t.Errorf("a pipe: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("a pipe is waited for")
	}
	if _, err := Load(t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: %v", err)
	}
}

// Bytes are counted, not time: they are the same on each machine.
func TestAFileOfAHundredThousandServersIsReadInLittleMemory(t *testing.T) {
	const services, servers = 100, 1000
	text := []byte(minimal[:strings.Index(minimal, "  - name: web")])
	for s := range services {
		text = fmt.Appendf(text, "  - name: web%d\n    vip: 198.18.%d.1\n    ports: [80]\n    servers:\n", s, s)
		for i := range servers {
			n := s*servers + i
			text = fmt.Appendf(text, "      - {name: s%d, address: 10.%d.%d.%d, id: %d}\n", i, 1+n/62500, n/250%250, 1+n%250, i+1)
		}
	}
	memory := func() (m runtime.MemStats) {
		runtime.GC()
		runtime.GC() // what the first has found is freed, and what has finalizers
		runtime.ReadMemStats(&m)
		return m
	}
	before := memory()
	fleet, err := Parse("large.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	after := memory()
	allocated, kept := after.TotalAlloc-before.TotalAlloc, int64(after.HeapAlloc)-int64(before.HeapAlloc)
	if allocated > 300<<20 || kept > 16<<20 {
		t.Errorf("%d bytes of file: %d bytes were allocated, %d are kept", len(text), allocated, kept)
	}
	runtime.KeepAlive(text)
	runtime.KeepAlive(fleet)
}
