package preload

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/quiclb"
	ids "github.com/ballast-lb/ballast/pkg/quiclb"
)

// run runs a program with the library, and says what it has printed and complained of.
func run(t *testing.T, library, file, program string, arguments ...string) (said, complained string) {
	t.Helper()
	var out, errs bytes.Buffer
	command := exec.Command(program, arguments...)
	command.Env = append(os.Environ(), "LD_PRELOAD="+library, "BALLAST_QUIC="+file)
	command.Stdout, command.Stderr = &out, &errs
	if err := command.Run(); err != nil {
		t.Fatalf("%v: %v: %s", command.Args, err, errs.String())
	}
	return strings.TrimSpace(out.String()), strings.TrimSpace(errs.String())
}

func fileOf(c quiclb.Config, algorithm string, server []byte) *ids.File {
	return &ids.File{Service: "h3", Config: c.ID, Algorithm: algorithm, Key: c.Key[:], ServerID: server, NonceLength: c.NonceLength, ResetKey: make([]byte, 32), TokenKey: make([]byte, 32)}
}

var forms = []struct {
	quiclb.Config
	name string
}{
	{quiclb.Config{ID: 1, Algorithm: quiclb.SinglePass, ServerIDLength: 2, NonceLength: 14}, "single-pass"},
	{quiclb.Config{ID: 6, Algorithm: quiclb.SinglePass, ServerIDLength: 8, NonceLength: 8}, "single-pass"},
	{quiclb.Config{ID: 0, Algorithm: quiclb.Plain, ServerIDLength: 2, NonceLength: 14}, "plain"},
	{quiclb.Config{ID: 2, Algorithm: quiclb.Plain, ServerIDLength: 1, NonceLength: 4}, "plain"},
	{quiclb.Config{ID: 3, Algorithm: quiclb.FourPass, ServerIDLength: 2, NonceLength: 17}, "four-pass"},
	{quiclb.Config{ID: 4, Algorithm: quiclb.FourPass, ServerIDLength: 2, NonceLength: 5}, "four-pass"},
	{quiclb.Config{ID: 5, Algorithm: quiclb.FourPass, ServerIDLength: 8, NonceLength: 10}, "four-pass"},
}

// What a program draws as its connection id names its server, and its other random bytes are left alone.
func TestConnectionIDsOfAProgramThatKnowsNothingNameItsServer(t *testing.T) {
	so, file := library(t, "quic"), filepath.Join(t.TempDir(), "h3.json")
	for _, form := range forms {
		c := form.Config
		copy(c.Key[:], "0123456789abcdef")
		server := slices.Repeat([]byte{0xa5}, c.ServerIDLength)
		write(t, file, fileOf(c, form.name, server))
		seen := map[string]bool{}
		for range 5 {
			said, complained := run(t, so, file, "openssl", "rand", "-hex", "20")
			id, err := hex.DecodeString(said)
			if err != nil || len(id) != 20 || complained != "" || seen[said] {
				t.Fatalf("%+v: %q, %q, %v", c, said, complained, err)
			}
			seen[said] = true
			if got, err := c.Decode(id[:c.Length()]); err != nil || !bytes.Equal(got, server) {
				t.Fatalf("%+v: id %x names %x, %v", c, id, got, err)
			}
		}
		said, _ := run(t, so, file, "openssl", "rand", "-hex", "32")
		if other, err := hex.DecodeString(said); err != nil || len(other) != 32 {
			t.Fatalf("%q, %v", said, err)
		}
	}
}

// A file that is not right is said so once, and nothing breaks.
func TestADamagedFileLeavesIDsToTheProgram(t *testing.T) {
	so, dir := library(t, "quic"), t.TempDir()
	c := quiclb.Config{ID: 1, ServerIDLength: 2, NonceLength: 14}
	right := fileOf(c, "single-pass", []byte{1, 2})
	with := func(change func(f *ids.File)) *ids.File {
		f := *right
		change(&f)
		return &f
	}
	path := filepath.Join(dir, "h3.json")
	check := func(name, path, want string) {
		t.Helper()
		said, complained := run(t, so, path, "openssl", "rand", "-hex", "20")
		if len(said) != 40 || strings.Count(complained, "\n") != 0 || !strings.Contains(complained, want) {
			t.Errorf("%s: %q, %q, not %q", name, said, complained, want)
		}
	}
	for name, file := range map[string]any{
		"config 7":        with(func(f *ids.File) { f.Config = 7 }),
		"short nonce":     with(func(f *ids.File) { f.NonceLength = 3 }),
		"no block":        with(func(f *ids.File) { f.NonceLength = 13 }),
		"a block":         with(func(f *ids.File) { f.Algorithm = "four-pass" }),
		"too long":        with(func(f *ids.File) { f.Algorithm, f.NonceLength = "plain", 18 }),
		"long server id":  with(func(f *ids.File) { f.Algorithm, f.ServerID, f.NonceLength = "plain", make([]byte, 9), 5 }),
		"no server id":    with(func(f *ids.File) { f.ServerID = nil }),
		"short key":       with(func(f *ids.File) { f.Key = f.Key[:15] }),
		"long key":        with(func(f *ids.File) { f.Key = make([]byte, 200) }),
		"no algorithm":    with(func(f *ids.File) { f.Algorithm = "three-pass" }),
		"another program": map[string]int{"config": 1},
		"nothing":         nil,
		"a string":        `"config`,
	} {
		write(t, path, file)
		check(name, path, "connection ids name no server")
	}
	check("none", filepath.Join(dir, "none.json"), "is not there")
	check("a directory", dir, "is no file of ballast agent")
	check("no name", "", "names no file")
	check("a name that is too long", strings.Repeat("x", 5000), "names no file")
}

// Keys are rotated while a server runs: the agent replaces the file.
func TestAProgramFollowsTheFile(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("a program that lives for a while:", err)
	}
	so, file := library(t, "quic"), filepath.Join(t.TempDir(), "h3.json")
	c := quiclb.Config{ID: 1, ServerIDLength: 2, NonceLength: 14}
	write(t, file, fileOf(c, "single-pass", []byte{1, 2}))
	write(t, file+".next", fileOf(quiclb.Config{ID: 2, Key: [16]byte{9}, ServerIDLength: 2, NonceLength: 14}, "single-pass", []byte{3, 4}))
	said, complained := run(t, so, file, "python3", "-c", fmt.Sprintf(`
import os, socket, ssl, time
def until(condition):
    end = time.monotonic() + 20
    while True:
        id = ssl.RAND_bytes(20)
        if condition(id): return id
        assert time.monotonic() < end, id
        time.sleep(0.01)
s = socket.socket()
first = ssl.RAND_bytes(20)
cookie = s.getsockopt(socket.SOL_SOCKET, 57, 8)
again = s.getsockopt(socket.SOL_SOCKET, 57, 8)
os.rename(%[1]q + ".next", %[1]q)
second = until(lambda id: id[0] >> 5 == 2)
print(first.hex(), int.from_bytes(cookie, "little").to_bytes(8, "big").hex(), again == cookie, second.hex())
`, file))
	fields := strings.Fields(said)
	if len(fields) != 4 || complained != "" {
		t.Fatalf("%q, %q", said, complained)
	}
	if !strings.HasPrefix(fields[0], fields[1]) || fields[2] != "False" {
		t.Errorf("SO_COOKIE behind id %s is %s as nginx writes it, and the same again: %s", fields[0], fields[1], fields[2])
	}
	id, _ := hex.DecodeString(fields[3])
	next := quiclb.Config{ID: 2, Key: [16]byte{9}, ServerIDLength: 2, NonceLength: 14}
	if server, err := next.Decode(id[:17]); err != nil || !bytes.Equal(server, []byte{3, 4}) {
		t.Errorf("after the rotation id %x names %x, %v", id, server, err)
	}
}

// A program that forks while a thread of it draws an id: the child blocks in RAND_bytes for ever if it inherits the lock.
func TestAProgramMayForkWhileItDrawsIDsAndKeepsNoKeyOnItsStack(t *testing.T) {
	so, dir := library(t, "quic", "-DFOLLOW_SECONDS=0"), t.TempDir()
	program, file := filepath.Join(dir, "fork"), filepath.Join(dir, "h3.json")
	if said, err := exec.Command("gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-o", program, "testdata/quic_fork.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	c := quiclb.Config{ID: 1, ServerIDLength: 2, NonceLength: 14}
	copy(c.Key[:], "0123456789abcdef")
	write(t, file, fileOf(c, "single-pass", []byte{1, 2}))
	c.ID = 2
	write(t, file+".next", fileOf(c, "single-pass", []byte{1, 2}))
	for _, key := range []string{hex.EncodeToString(c.Key[:]), string(c.Key[:])} {
		if said, complained := run(t, so, file, program, file, key, file+".next"); said != "" || complained != "" {
			t.Errorf("%q, %q", said, complained)
		}
		c.ID++
		write(t, file+".next", fileOf(c, "single-pass", []byte{1, 2}))
	}
}
