package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Implementation constants of exec checks.
const (
	maxOutput = 4 << 10 // bytes of a program's output that are kept: the last
	// pipeDelay is how long the output of a program that has ended stays open for children that it left behind.
	pipeDelay = 500 * time.Millisecond
)

// Exec says which programs exec checks may run. The zero value: none.
//
// Whoever configures a fleet chooses programs and arguments, and the daemon is root. So only who may be root on this host should choose
// them: in Any case where that is who writes the configuration file, else by what is in Dir.
type Exec struct {
	Any bool   // whatever the configuration names, as the user of this process
	Dir string // programs in this directory alone, as nobody
}

// nobody is who programs of Exec.Dir run as.
const nobody = 65534

// errNotAllowed is a check that this host does not make. It says nothing about the server.
var errNotAllowed = errors.New("not allowed on this host")

// program returns what a command may run here.
func (e Exec) program(command []string) (path string, err error) {
	name := command[0]
	switch {
	case e.Any:
		return name, nil
	case e.Dir == "":
		return "", fmt.Errorf("run %s: exec checks are %w: start the load balancer with --exec-checks DIR and put the program there", name, errNotAllowed)
	}
	if filepath.Dir(name) != "." && filepath.Dir(name) != filepath.Clean(e.Dir) {
		return "", fmt.Errorf("run %s: %w: only programs in %s are: put it there", name, errNotAllowed, e.Dir)
	}
	if base := filepath.Base(name); base == "." || base == ".." || base == "/" {
		return "", fmt.Errorf("run %s: %w: it names no program of %s", name, errNotAllowed, e.Dir)
	}
	if err := CheckDir(e.Dir); err != nil {
		return "", fmt.Errorf("run %s: %w: %w", name, errNotAllowed, err)
	}
	path = filepath.Join(e.Dir, filepath.Base(name))
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return "", fmt.Errorf("run %s: %w: %w", name, errNotAllowed, err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("run %s: %w: %s is no regular file: copy the program, links are not followed", name, errNotAllowed, path)
	case !ownersAlone(info):
		return "", fmt.Errorf("run %s: %w: others than root can change %s: chown root and chmod go-w it", name, errNotAllowed, path)
	case info.Mode().Perm()&0o001 == 0:
		return "", fmt.Errorf("run %s: %w: it runs as nobody, who may not run %s: chmod o+rx it", name, errNotAllowed, path)
	}
	return path, nil
}

// CheckDir refuses a directory of programs that others than root could put something into.
func CheckDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("directory of programs %s: give the whole path", dir)
	}
	for path := filepath.Clean(dir); ; path = filepath.Dir(path) {
		info, err := os.Lstat(path)
		switch {
		case err != nil:
			return fmt.Errorf("directory of programs: %w", err)
		case !info.IsDir():
			return fmt.Errorf("directory of programs %s: %s is no directory: links are not followed", dir, path)
		case !ownersAlone(info) && (path == filepath.Clean(dir) || info.Mode()&fs.ModeSticky == 0):
			return fmt.Errorf("directory of programs %s: others than root can change %s: chown root and chmod go-w it", dir, path)
		}
		if path == "/" {
			return nil
		}
	}
}

// ownersAlone reports whether nobody but root, or the user of this process, can write a file.
func ownersAlone(info fs.FileInfo) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && (owner.Uid == 0 || int(owner.Uid) == os.Geteuid()) && info.Mode().Perm()&0o022 == 0
}

// run makes an exec check.
func (e Exec) run(ctx context.Context, t Target) error {
	program, err := e.program(t.Health.Command)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, program, t.Health.Command[1:]...)
	command.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"BALLAST_SERVICE=" + t.Service,
		"BALLAST_SERVER=" + t.Name,
		fmt.Sprintf("BALLAST_ADDRESS=%s", t.Address),
		fmt.Sprintf("BALLAST_PORT=%d", t.checkedPort()),
	}
	if t.VIP.IsValid() {
		command.Env = append(command.Env, fmt.Sprintf("BALLAST_VIP=%s", t.VIP))
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if !e.Any {
		command.Dir = "/"
		if os.Geteuid() == 0 {
			command.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		}
	}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = pipeDelay
	var output tail
	command.Stdout, command.Stderr = &output, &output
	err = command.Run()
	ended := command.ProcessState != nil && command.ProcessState.Exited() // by itself; what it left behind may still hold its output
	switch {
	case errors.Is(err, syscall.EPERM) && command.Process == nil:
		return fmt.Errorf("run %s as nobody: %w: %w: give the load balancer CAP_SETUID, CAP_SETGID and CAP_KILL by the drop-in that ballast-lb.service names", program, errNotAllowed, err)
	case err == nil, ended && command.ProcessState.Success():
		return nil
	case ctx.Err() != nil && !ended:
		return fmt.Errorf("%s: timed out", program)
	}
	if line := output.lastLine(); line != "" {
		return fmt.Errorf("%s: %w: %s", program, err, line)
	}
	return fmt.Errorf("%s: %w", program, err)
}

// tail keeps the last bytes that were written to it.
type tail struct{ bytes []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.bytes = append(t.bytes, p[max(0, len(p)-maxOutput):]...)
	if excess := len(t.bytes) - maxOutput; excess > 0 {
		t.bytes = append(t.bytes[:0], t.bytes[excess:]...)
	}
	return len(p), nil
}

func (t *tail) lastLine() string {
	lines := strings.Split(strings.TrimSpace(string(t.bytes)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
