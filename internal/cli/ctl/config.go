package ctl

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

// do asks the daemon of this machine and prints what it changed.
func (c *control) do(cmd *cobra.Command, method, path string) error {
	client, err := c.local()
	if err != nil {
		return err
	}
	var answer api.Changed
	if err := client.Do(cmd.Context(), method, path, nil, &answer); err != nil {
		return err
	}
	return c.print(cmd.OutOrStdout(), outcome{Changes: command.NonNil(answer.Changes)})
}

func (c *control) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Compare what a daemon runs with its configuration file, and have the file read",
		Long:  "Compare what a daemon runs with its configuration file, and have the file read. One that runs by controllers has no file.",
	}
	act := func(name string) string { return strings.Replace(api.PathConfigAction, "{action}", name, 1) }
	var force bool
	reload := &cobra.Command{
		Use: "reload", Short: "Read the file of a load balancer or agent again now",
		Long: `Read the file of a load balancer or agent again now.

A file is refused that gives an epoch in use another key, or has no key for it, or gives a server's id to another: living connections
would lose their servers. If it is the old keys or ids that were wrong, --force takes the file all the same. An agent's refusal says how
many connections live there.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.do(cmd, http.MethodPost, fmt.Sprintf("%s?%s=%t", act("reload"), api.Force, force))
		},
	}
	reset := &cobra.Command{
		Use: "reset", Short: "Undo what ctl changed: the file rules",
		Long: "Undo what ctl changed: the file rules. It is refused, but for --force, where `config reload` would refuse the file.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.do(cmd, http.MethodPost, fmt.Sprintf("%s?%s=%t", act("reset"), api.Force, force))
		},
	}
	for _, cmd := range []*cobra.Command{reload, reset} {
		cmd.Flags().BoolVar(&force, "force", false, "even if living connections lose their servers")
	}
	cmd.AddCommand(reload, reset, &cobra.Command{
		Use: "diff", Short: "Show what ctl changed since",
		RunE: func(cmd *cobra.Command, _ []string) error { return c.do(cmd, http.MethodGet, api.PathConfigDiff) },
	})
	return cmd
}

// countersCommands are the counters, and their reset.
func (c *control) countersCommands() *cobra.Command {
	cmd := c.countersCommand()
	cmd.AddCommand(&cobra.Command{
		Use:   "reset",
		Short: "Set all counters of a load balancer to 0",
		Long: `Set all counters of services and servers of a load balancer to 0. Nothing that steers packets changes: estimates of open
connections (p2c) and servers' clocks (return: through) stay. Removed servers count as heard of now, so that they stay for
another --linger. Prometheus takes it for a restart.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.do(cmd, http.MethodDelete, api.PathCounters) },
	})
	return cmd
}
