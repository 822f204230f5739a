// Package contexts is `ballast ctl context`, which gives fleets names on this machine and asks nobody.
package contexts

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

// row is one context, as -o json prints it.
type row struct {
	Name     string `json:"name"`
	Used     bool   `json:"used"`
	ChosenBy string `json:"chosen_by,omitempty"`
	ask.Context
}

// Command makes `ballast ctl context`.
func Command(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "context", Short: "Manage contexts: named fleets for commands without connection flags"}
	cmd.AddCommand(list(c), show(c), use(), set(c), remove())
	return cmd
}

func list(c *ask.Control) *cobra.Command {
	return command.Reading(&cobra.Command{Use: "list", Short: "List contexts"}, c.Output,
		func(*cobra.Command, []string) ([]row, error) { return rows(c) }, printRows)
}

func show(c *ask.Control) *cobra.Command {
	return command.Reading(&cobra.Command{Use: "show [NAME]", Short: "Show a context, or the one in use and what selected it"}, c.Output,
		func(_ *cobra.Command, args []string) (row, error) {
			all, err := rows(c)
			if err != nil {
				return row{}, err
			}
			for i := range all {
				if len(args) == 0 && all[i].Used || len(args) > 0 && all[i].Name == args[0] {
					return all[i], nil
				}
			}
			if len(args) == 0 {
				return row{}, command.NotFound("no context is used: choose one with `ballast ctl context use NAME`")
			}
			return row{}, unknown(args[0])
		}, command.One(func(table *command.Table, r row) { printRows(table, []row{r}) }))
}

func rows(c *ask.Control) ([]row, error) {
	all, err := ask.LoadContexts()
	if err != nil {
		return nil, err
	}
	used, by := c.ChosenContext(all)
	rows := []row{}
	for _, name := range slices.Sorted(maps.Keys(all.Contexts)) {
		r := row{Name: name, Used: name == used, Context: all.Contexts[name]}
		if r.Used {
			r.ChosenBy = by
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func printRows(table *command.Table, rows []row) {
	head := "USED\tNAME\tASKS\tTLS DIRECTORY"
	if table.Wide {
		head += "\tCERTIFICATE\tSOCKETS\tCHOSEN BY"
	}
	table.Row(head)
	for i := range rows {
		r := &rows[i]
		used := ""
		if r.Used {
			used = "*"
		}
		cells := []any{used, r.Name, r.asks(), command.OrDash(r.TLSDir)}
		if table.Wide {
			cells = append(cells, command.OrDash(r.TLSName), command.OrDash(r.RunDir), command.OrDash(r.ChosenBy))
		}
		table.Row(cells...)
	}
}

// asks tells who is asked.
func (r *row) asks() string {
	switch {
	case len(r.Controllers) > 0:
		return "controllers " + strings.Join(r.Controllers, ",")
	case r.Socket != "":
		return "socket " + r.Socket
	case r.Instance != "":
		return "instance " + r.Instance
	}
	return "the local daemon"
}

func use() *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Use a context from now on",
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask.ChangeContexts(func(all *ask.Contexts) error {
				if _, known := all.Contexts[args[0]]; !known {
					return unknown(args[0])
				}
				all.Current = args[0]
				return nil
			})
		},
	}
}

func set(c *ask.Control) *cobra.Command {
	return &cobra.Command{
		Use: "set NAME", Short: "Make or change a context by the flags that are given",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := ask.CheckContextName(args[0]); err != nil {
				return err
			}
			return ask.ChangeContexts(func(all *ask.Contexts) error {
				one := all.Contexts[args[0]]
				if err := c.PutGiven(&one); err != nil {
					return err
				}
				if one.TLSDir != "" {
					one.TLSDir, _ = filepath.Abs(one.TLSDir)
				}
				all.Contexts[args[0]] = one
				return nil
			})
		},
	}
}

func remove() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Forget a context; nothing changes in its fleet",
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask.ChangeContexts(func(all *ask.Contexts) error {
				if _, known := all.Contexts[args[0]]; !known {
					return unknown(args[0])
				}
				delete(all.Contexts, args[0])
				if all.Current == args[0] {
					all.Current = ""
				}
				return nil
			})
		},
	}
}

func unknown(name string) error {
	return command.NotFound("there is no context %q: see `ballast ctl context list`", name)
}
