package file

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/discovery/discoverytest"
	"github.com/ballast-lb/ballast/internal/machine/discovery"
	"github.com/ballast-lb/ballast/internal/model"
)

const two = "- {address: 10.0.0.1}\n- {name: b, address: 10.0.0.2, port: 81, weight: 7, state: draining}\n"

// reading is files/web.yaml below a folder.
func reading(t *testing.T) (s *Source, dir string) {
	dir = t.TempDir()
	return New(model.ServerSource{From: model.SourceFile, Path: "web.yaml"}, dir), filepath.Join(dir, "files")
}

func show(answer discovery.Answer) string {
	if answer.Err != nil {
		return "error: " + answer.Err.Error()
	}
	var list []string
	for _, f := range answer.Servers {
		list = append(list, fmt.Sprintf("%s=%s:%d*%d %v", f.Name, f.Address, f.Port, f.Weight, f.Draining))
	}
	return strings.Join(list, ", ")
}

func expect(t *testing.T, s *Source, want string) {
	t.Helper()
	if answer, _ := s.Ask(t.Context()); answer.Err == nil && show(answer) != want || !strings.Contains(show(answer), want) {
		t.Errorf("have %s, want %s", show(answer), want)
	}
}

func TestFilesAreReadHoweverTheyChange(t *testing.T) {
	s, dir := reading(t)
	path := filepath.Join(dir, "web.yaml")
	expect(t, s, "error: read "+path+": no such file or directory")
	discoverytest.Write(t, path, two)
	expect(t, s, "=10.0.0.1:0*1 false, b=10.0.0.2:81*7 true")
	discoverytest.Write(t, path, "- {address: 2001:db8::1, weight: 0}")
	expect(t, s, "=2001:db8::1:0*0 false")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Remove(path))
	expect(t, s, "no such file or directory")
	// as a ConfigMap is mounted: web.yaml -> ..data/web.yaml, ..data -> a folder, which another link replaces
	discoverytest.Write(t, filepath.Join(dir, "..1/web.yaml"), "- {address: 10.0.0.1}")
	discoverytest.Write(t, filepath.Join(dir, "..2/web.yaml"), "- {address: 10.0.0.2}")
	must(os.Symlink("..1", filepath.Join(dir, "..data")))
	must(os.Symlink("..data/web.yaml", path))
	expect(t, s, "=10.0.0.1:0*1 false")
	must(os.Symlink("..2", filepath.Join(dir, "..new")))
	must(os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data")))
	must(os.RemoveAll(filepath.Join(dir, "..1")))
	expect(t, s, "=10.0.0.2:0*1 false")
	must(os.RemoveAll(filepath.Join(dir, "..2")))
	expect(t, s, "no such file or directory")
	must(os.RemoveAll(dir))
	expect(t, s, "error: read "+path+": no such file or directory")
}

// Promise: A fleet can name files of servers that are in the controller's folder for them, and no others.
func TestOtherFilesAreNotRead(t *testing.T) {
	s, dir := reading(t)
	secret := filepath.Join(t.TempDir(), "key")
	discoverytest.Write(t, secret, "SECRET")
	discoverytest.Write(t, filepath.Join(dir, "../consul/token"), "SECRET")
	discoverytest.Write(t, filepath.Join(dir, "web.yaml"), two)
	for name, make := range map[string]func(path string) error{
		"link.yaml":     func(path string) error { return os.Symlink(secret, path) },
		"relative.yaml": func(path string) error { return os.Symlink("../consul/token", path) },
		"folder":        func(path string) error { return os.Symlink(filepath.Dir(secret), path) },
		"pipe":          func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"circle":        func(path string) error { return os.Symlink("circle", path) },
		"own":           func(path string) error { return os.Mkdir(path, 0o755) },
	} {
		if err := make(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"link.yaml": "path escapes from parent", "relative.yaml": "path escapes from parent", "../consul/token": "path escapes from parent", secret: "path escapes from parent",
		"folder/key": "path escapes from parent", "pipe": "not a regular file", "own": "not a regular file", "circle": "", "": "",
	} {
		s.path = path
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if answer, _ := s.Ask(ctx); answer.Err == nil || !strings.Contains(answer.Err.Error(), want) || strings.Contains(answer.Err.Error(), "SECRET") || ctx.Err() != nil {
			t.Errorf("%s: %s, want %s", path, show(answer), want)
		}
		cancel()
	}
	if os.Geteuid() != 0 {
		s.path = "web.yaml"
		if err := os.Chmod(filepath.Join(dir, s.path), 0); err != nil {
			t.Fatal(err)
		}
		expect(t, s, "permission denied")
	}
}

// Promise: A file that is no list of servers is an error in a line, with its place and remedy.
func TestWrongFilesAreErrors(t *testing.T) {
	s, dir := reading(t)
	for text, want := range map[string]string{
		"":                                       "write a list of servers",
		"\x00\x01":                               "web.yaml:1",
		"servers: []":                            "web.yaml:1",
		"- 10.0.0.1":                             "web.yaml:1",
		"- {address: 10.0.0.1}\n- {addr_ess: x}": "web.yaml:2: [1].addr_ess: unknown key: did you mean address?",
		"- {address: 10.0.0.1}\n- {address: 10.0.": "web.yaml:",
		"- {address: web.example.com}":             "web.yaml:1: [0].address",
		"- {address: 10.0.0.1, id: 7}":             "[0].id: 7 is given: remove it: controllers give ids",
		"- {address: 10.0.0.1, state: off}":        "a source switches no server off",
		strings.Repeat("- {address: x}\n", 9):      "and 6 more",
		"- &a {address: 10.0.0.1}\n- *a":           "web.yaml:",
		strings.Repeat("# and more\n", 500_000):    "more than 4194304 bytes",
	} {
		discoverytest.Write(t, filepath.Join(dir, "web.yaml"), text)
		answer, _ := s.Ask(t.Context())
		if answer.Err == nil || !strings.Contains(answer.Err.Error(), want) || strings.Contains(answer.Err.Error(), "\n") || len(answer.Err.Error()) > 1000 {
			t.Errorf("%.40q: %.1000s, want %s", text, show(answer), want)
		}
	}
	discoverytest.Write(t, filepath.Join(dir, "web.yaml"), "[]")
	if answer, _ := s.Ask(t.Context()); new(discovery.Tracker).Take(answer, time.Now()) == nil {
		t.Error("an empty list is taken")
	}
}

// A file that is written in several steps counts when it is complete: half of it is a list too.
func TestAFileThatIsBeingWrittenIsWaitedFor(t *testing.T) {
	s, dir := reading(t)
	path := filepath.Join(dir, "web.yaml")
	discoverytest.Write(t, path, "")
	lines := make(chan bool)
	asked := make(chan string)
	s.wait = func(context.Context) { lines <- true; <-lines }
	go func() {
		answer, _ := s.Ask(t.Context())
		asked <- show(answer)
	}()
	for i := range 5 {
		<-lines
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(f, "- {address: 10.0.0.%d}\n", i+1)
		f.Close()
		lines <- true
	}
	<-lines
	lines <- true
	if have := <-asked; strings.Count(have, "10.0.0.") != 5 {
		t.Errorf("read %s", have)
	}
	n := 0
	s.wait = func(context.Context) { n++; discoverytest.Write(t, path, fmt.Sprintf("- {address: 10.0.0.%d}", n)) }
	expect(t, s, "error: the file changes all the time")
}

// A volume of a ConfigMap is links to a folder that is replaced as a whole.
func TestAVolumeOfKubernetesIsRead(t *testing.T) {
	s, dir := reading(t)
	version := func(name, text string) {
		for _, err := range []error{os.MkdirAll(filepath.Join(dir, name), 0o755), os.WriteFile(filepath.Join(dir, name, "web.yaml"), []byte(text), 0o644),
			os.Symlink(name, filepath.Join(dir, "..data_tmp")), os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	version("..2026_11_30_1", two)
	if err := os.Symlink("..data/web.yaml", filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	expect(t, s, "=10.0.0.1:0*1 false, b=10.0.0.2:81*7 true")
	version("..2026_11_30_2", "- {address: 10.0.0.3}\n")
	expect(t, s, "=10.0.0.3:0*1 false")
}
