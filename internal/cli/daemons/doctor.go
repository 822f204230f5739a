// ballast doctor.
package daemons

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/doctor"
	"github.com/ballast-lb/ballast/internal/model"
)

// Doctor makes `ballast doctor`.
func Doctor() *cobra.Command {
	o := doctor.Options{Role: doctor.RoleAuto}
	var output *command.Output
	cmd := &cobra.Command{
		Use:   "doctor [-f FILE]",
		Short: "Find what breaks set-ups, with the remedy",
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings := examine(cmd, o)
			if err := command.Print(cmd.OutOrStdout(), output, findings, printFindings); err != nil {
				return err
			}
			if n := count(findings, doctor.Problem); n > 0 {
				return fmt.Errorf("doctor: %s: see the remedies", model.Counted(n, "problem", "problems"))
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.Config, "file", "f", "", "configuration `FILE` of the fleet (default: what the daemon runs, or has run last)")
	flags.Var(command.OneOf(&o.Role, doctor.RoleAuto, doctor.RoleLB, doctor.RoleAgent), "role", "auto, lb or agent")
	flags.StringVar(&o.Server, "server", "", "`NAME` of this host's servers in the file (default: those whose address is local)")
	flags.StringVar(&o.Name, "name", "", "`NAME` of this load balancer among the file's nodes (default: that of the daemon, else of the host)")
	flags.StringSliceVar(&o.Interfaces, "interface", nil, "`DEVICE` to look at, may be repeated (default: those that the daemon has or would take)")
	flags.StringVar(&o.Instance, "instance", "default", "`NAME` of the only instance to look at (default: all daemons of this machine)")
	flags.StringVar(&o.RunDir, "run-dir", api.RunDir, "`DIRECTORY` of sockets and pins")
	flags.StringVar(&o.StateDir, "state-dir", "/var/lib/ballast", "`DIRECTORY` of what daemons keep for the next")
	output = command.NewOutput(flags)
	flags.BoolVarP(&o.Verbose, "verbose", "v", false, "print the kernel's verifier log of a rejected program, too (hundreds of lines)")
	return cmd
}

// marks lead the lines of the table, so that what is wrong is seen first.
var marks = map[doctor.Severity]string{doctor.OK: "  ok", doctor.Warning: "  ! ", doctor.Problem: "XXX "}

// found is a finding of one daemon, as --json prints it.
type found struct {
	Instance string      `json:"instance"`
	Role     doctor.Role `json:"role,omitempty"`
	doctor.Finding
}

// examine looks at the instance that is named, else at all of the machine.
func examine(cmd *cobra.Command, o doctor.Options) []found {
	all := []found{}
	said := newPatience(command.NewLine(cmd.ErrOrStderr(), 0), patienceEnds)
	defer said.end()
	o.Doing = said.doing
	for _, daemon := range doctor.Machine(cmd.Context(), o, cmd.Flags().Changed("instance")) {
		for _, f := range daemon.Findings {
			all = append(all, found{daemon.Instance, daemon.Role, f})
		}
	}
	return all
}

// patience reports to a terminal what is waited for, once that takes long. Its methods are safe for concurrent use.
type patience struct {
	mutex sync.Mutex
	line  *command.Line
	what  string
	long  bool // it has taken long, and has not ended
	timer *time.Timer
}

const patienceEnds = time.Second

func newPatience(line *command.Line, ends time.Duration) *patience {
	p := &patience{line: line}
	if line.Live {
		p.timer = time.AfterFunc(ends, func() { p.report(func() { p.long = true }) })
	}
	return p
}

func (p *patience) report(change func()) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if change(); p.long && p.what != "" {
		p.line.Renew("doctor: " + p.what + " ...")
	}
}

func (p *patience) doing(what string) { p.report(func() { p.what = what }) }

func (p *patience) end() {
	if p.timer != nil {
		p.timer.Stop()
		p.report(func() { p.long, p.what = false, "" }) // and whoever comes later says nothing
		p.line.Say("")
	}
}

func count(findings []found, s doctor.Severity) (n int) {
	for i := range findings {
		if findings[i].Severity == s {
			n++
		}
	}
	return n
}

func printFindings(table *command.Table, findings []found) {
	logs := ""
	several := slices.ContainsFunc(findings, func(f found) bool { return f.Instance != findings[0].Instance })
	for i, f := range findings {
		if several && (i == 0 || f.Instance != findings[i-1].Instance) {
			table.Line("instance %s%s", f.Instance, strings.TrimRight(", "+string(f.Role), ", "))
		}
		what, log, _ := strings.Cut(f.Found, "\n")
		table.Row(marks[f.Severity], f.Check, f.Subject, what)
		if f.Remedy != "" {
			table.Line("\t\t\t-> %s", f.Remedy)
		}
		if log != "" {
			logs += fmt.Sprintf("the verifier about %s %s:\n%s\n", f.Check, f.Subject, log)
		}
	}
	table.Line("%s%s, %s, %d ok", logs, model.Counted(count(findings, doctor.Problem), "problem", "problems"),
		model.Counted(count(findings, doctor.Warning), "warning", "warnings"), count(findings, doctor.OK))
}
