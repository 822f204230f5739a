// Package preload tests what servers preload, in programs of others.
package preload

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ballast-lb/ballast/internal/await"
)

// built are libraries by the name of their source.
var built = struct {
	sync.Mutex
	dir   string
	paths map[string]string
}{paths: map[string]string{}}

func TestMain(m *testing.M) {
	status := m.Run()
	os.RemoveAll(built.dir)
	os.Exit(status)
}

// library builds one, as make does, once. Definitions make another one.
func library(t testing.TB, name string, definitions ...string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "preload")
		if err := errors.Join(err, os.Chmod(dir, 0o755)); err != nil { // servers give up root
			t.Fatal(err)
		}
		built.dir = dir
	}
	path := filepath.Join(built.dir, "ballast-"+name+strings.Join(definitions, "")+".so")
	if built.paths[path] == "" {
		arguments := append([]string{"-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden", "-o", path, "../../preload/" + name + ".c"}, definitions...)
		if said, err := exec.Command("gcc", arguments...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		built.paths[path] = path
	}
	return path
}

// write replaces a file as the agent does.
func write(t testing.TB, path string, file any) {
	t.Helper()
	text, err := json.MarshalIndent(file, "", "  ")
	if err == nil {
		err = os.WriteFile(path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// said is what a program has printed until now.
type said struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (s *said) Write(text []byte) (int, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.text.Write(text)
}

func (s *said) String() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.text.String()
}

// complaints returns the lines of a library.
func (s *said) complaints() (lines []string) {
	for line := range strings.Lines(s.String()) {
		if strings.HasPrefix(line, "ballast-") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

// process is a program that runs until the test ends.
type process struct {
	*exec.Cmd
	said
}

// start runs a program with more in its environment.
func start(t testing.TB, environment []string, program string, arguments ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(program, arguments...)}
	p.Env = append(os.Environ(), environment...)
	p.Stdout, p.Stderr = &p.said, &p.said
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Process.Signal(os.Interrupt) // lets it stop its own processes
		done := make(chan struct{})
		go func() {
			p.Wait()
			close(done)
		}()
		await.True(t, p.Path+" ends", func() bool {
			select {
			case <-done:
				return true
			default:
				return false
			}
		})
		if t.Failed() {
			t.Logf("%v: %s", p.Args, p.said.String())
		}
	})
	return p
}

// freePort returns one that nobody listens at now.
func freePort(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

// installed skips a test if a program is not there, and returns its path. Those of the folder BALLAST_SERVERS come first.
func installed(t testing.TB, program string) string {
	t.Helper()
	for _, name := range []string{filepath.Join(os.Getenv("BALLAST_SERVERS"), program), program, "/usr/sbin/" + program} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skipf("%s is not installed", program)
	return ""
}
