package bench

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
)

// compilePeer compiles the peer of the tests and describes it, changed as the test needs.
func compilePeer(t *testing.T, changes ...string) (file string) {
	t.Helper()
	dir := t.TempDir()
	headers, err := filepath.Glob("/usr/include/*-linux-gnu")
	if err != nil || len(headers) == 0 {
		t.Fatalf("no headers for %s: %v", runtime.GOARCH, err)
	}
	compile := exec.Command("clang-19", "-target", "bpf", "-O2", "-g", "-mcpu=v3", "-I../../../bpf", "-I"+headers[0],
		"-c", "peer/testdata/peer.bpf.c", "-o", filepath.Join(dir, "peer.o"))
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile("peer/testdata/peer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "peer.yaml")
	if err := os.WriteFile(file, []byte(strings.NewReplacer(changes...).Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// measurePeer measures a peer alone.
func measurePeer(t *testing.T, file string) error {
	t.Helper()
	peers, unload, err := openPeers([]string{file})
	if err != nil {
		return err
	}
	defer unload()
	programs, err := wrapper.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer programs.Close()
	options := Options{Rounds: 1, Repeat: 300, Flows: []uint32{10}}
	empty := subject{name: "empty", program: programs.Empty(), cell: plainCell(rrVIP, segmentACK), keeps: true, check: checkUnchanged}
	r := runner{programs: programs}
	return r.run(context.Background(), measurements(append([]subject{empty}, peers...), options), &options)
}

// A peer that does something else than its file says must not get a time.
func TestAPeerThatDoesSomethingElseIsRefused(t *testing.T) {
	needRoot(t)
	if err := measurePeer(t, compilePeer(t)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"destinations: [10.1.0.1]", "destinations: [10.1.0.2]", "the packet goes to 10.1.0.1, want one of [10.1.0.2]"},
		{"growth: 20", "growth: 40", "had another length than expected"},
		{`enabled: "01"`, `enabled: "00"`, "the last action is 2 (want 3)"},
		{"vip: 198.51.100.100", "vip: 198.51.100.101", "the last action is 1 (want 3)"},
		{"offset: 8", "offset: 0", "the program has counted 0 of 300 packets"},
		{"offset: 8", "offset: 9", "a value has 16 bytes: use a smaller offset"},
		{"xdp/balance", "xdp/none", `there is no program "xdp/none": it has balance, encapsulate`},
		{"program: encapsulate", "program: decapsulate", `there is no program "decapsulate" to call`},
		{"enabled:", "disabled:", `there is no constant "disabled": it has enabled`},
		{"servers: 16", "clients: 16", `there is no map "clients": it has`},
		{"map: servers,", "map: clients,", "map clients: the object has none of this name"},
		{"map: caches", "map: counters", "it is no map of maps"},
		{"peer.o", "none.o", "no such file"},
	} {
		err := measurePeer(t, compilePeer(t, c.old, c.new))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: have %v, want %s", c.new, err, c.want)
		}
	}
}
