package quiclb

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func example() File {
	return File{Service: "web", Config: 3, Algorithm: "single-pass", Key: bytes.Repeat([]byte{7}, 16), ServerID: Secret{0, 9}, NonceLength: 14,
		ResetKey: bytes.Repeat([]byte{1}, 32), TokenKey: bytes.Repeat([]byte{2}, 32)}
}

// write replaces the file as the agent does.
func write(t *testing.T, path string, content any) {
	t.Helper()
	text, ok := content.([]byte)
	if !ok {
		var err error
		if text, err = json.Marshal(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func (g *Generator) mustName(t *testing.T, config uint8, server []byte) {
	t.Helper()
	id, err := g.New()
	if err != nil || len(id) != g.Length() || id[0]>>5 != config {
		t.Fatalf("id %x of %d bytes (%v)", id, g.Length(), err)
	}
	if got, err := g.file.Current().config.Decode(id); err != nil || !bytes.Equal(got, server) {
		t.Fatalf("id %x names %x (%v), not %x", id, got, err, server)
	}
}

// again makes the next id look at the file.
func (g *Generator) again() { g.file.Again() }

func TestIDsFollowTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.json")
	file := example()
	write(t, path, file)
	g, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	g.mustName(t, 3, []byte{0, 9})
	file.Config, file.Key, file.ServerID = 4, bytes.Repeat([]byte{8}, 16), Secret{1, 1}
	write(t, path, file)
	g.mustName(t, 3, []byte{0, 9}) // it has not looked yet
	g.again()
	g.mustName(t, 4, []byte{1, 1})
	if g.Err() != nil || g.StatelessResetKey() != [32]byte(file.ResetKey) || g.TokenKey() != [32]byte(file.TokenKey) {
		t.Errorf("%v, %x, %x", g.Err(), g.StatelessResetKey(), g.TokenKey())
	}
}

// A server that has begun goes on, whatever becomes of its file.
//
// Promise: When the agent's file is damaged, missing or a pipe, the application continues with what it has read.
func TestADamagedFileChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.json")
	write(t, path, example())
	g, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	longer, other := example(), example()
	longer.ServerID, longer.Algorithm = Secret{0, 0, 9}, "plain"
	other.ResetKey = bytes.Repeat([]byte{9}, 32)
	for _, content := range []any{[]byte("{"), []byte(nil), longer, other, File{}} {
		write(t, path, content)
		g.again()
		g.mustName(t, 3, []byte{0, 9})
		if g.Err() == nil {
			t.Errorf("%v was taken", content)
		}
	}
	os.Remove(path)
	g.again()
	g.mustName(t, 3, []byte{0, 9})
	write(t, path, example())
	g.again()
	g.mustName(t, 3, []byte{0, 9})
	if err := g.Err(); err != nil {
		t.Error(err)
	}
}

func TestWhatIsWrongWithAFileIsSaid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.json")
	if _, err := Open(path); !os.IsNotExist(err) {
		t.Error(err)
	}
	for want, change := range map[string]func(*File){
		"none of single-pass, four-pass, plain": func(f *File) { f.Algorithm = "rot13" },
		"key has 15 bytes":                      func(f *File) { f.Key = f.Key[1:] },
		"config 7":                              func(f *File) { f.Config = 7 },
		"a nonce of 3 bytes":                    func(f *File) { f.NonceLength = 3 },
		"not 32":                                func(f *File) { f.TokenKey = nil },
		"a single pass has 16":                  func(f *File) { f.ServerID = append(f.ServerID, 1) },
	} {
		file := example()
		change(&file)
		write(t, path, file)
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestManyMayAskAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.json")
	write(t, path, example())
	g, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 1000 {
				if _, err := g.New(); err != nil {
					t.Error(err)
				}
				g.Err()
				g.StatelessResetKey()
				g.TokenKey()
			}
		})
	}
	group.Go(func() { // the file is another one again and again
		for range 20 {
			write(t, path, example())
			g.again()
		}
	})
	group.Wait()
}

// What is wrong with a file may be a number, and is said instead of a panic.
func TestNoNonceIsTooLongToBeRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.json")
	file := example()
	file.Algorithm, file.NonceLength = "plain", math.MaxInt
	write(t, path, file)
	if _, err := Open(path); err == nil {
		t.Error("taken")
	}
}

// A pipe has no end until somebody writes to it and goes, and ids are needed before.
func TestAPipeInPlaceOfTheFileHangsNobody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.json")
	write(t, path, example())
	g, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	g.again()
	g.mustName(t, 3, []byte{0, 9})
	if g.Err() == nil {
		t.Error("nothing is wrong")
	}
}

func TestTheFileOfBeforeIsGoodAgainWhenItComesBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.json")
	write(t, path, example())
	g, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		from, to string
		bad      bool
	}{{path, path + ".away", true}, {path + ".away", path, false}} {
		if err := os.Rename(step.from, step.to); err != nil {
			t.Fatal(err)
		}
		g.again()
		g.mustName(t, 3, []byte{0, 9})
		if err := g.Err(); step.bad != (err != nil) {
			t.Errorf("moved to %s: %v", step.to, err)
		}
	}
}
