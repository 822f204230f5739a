package check

import (
	"context"
	"fmt"
	"os"
	"os/exec"
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

// run makes an exec check.
func run(ctx context.Context, t Target) error {
	program := t.Health.Command[0]
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
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = pipeDelay
	var output tail
	command.Stdout, command.Stderr = &output, &output
	err := command.Run()
	ended := command.ProcessState != nil && command.ProcessState.Exited() // by itself; what it left behind may still hold its output
	switch {
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
