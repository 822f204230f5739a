// Package version is `ballast version`.
package version

import (
	"crypto/sha256"
	"encoding/hex"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/linux/objects"
)

// versions are all that tell one build from another.
type versions struct {
	Version  string         `json:"version"`
	Commit   string         `json:"commit,omitempty"`      // empty: built outside a checkout
	Date     string         `json:"commit_date,omitempty"` // RFC 3339
	Modified bool           `json:"modified"`              // the checkout was not the commit's
	Go       string         `json:"go"`
	Platform string         `json:"platform"`
	Protocol int            `json:"control_protocol"` // peers of another one are refused
	Objects  []kernelObject `json:"kernel_objects"`
}

type kernelObject struct {
	Name   string `json:"name"`
	Layout string `json:"map_layout,omitempty"`
	SHA256 string `json:"sha256"`
}

// Command makes `ballast version`, which shows the version of this build.
func Command(version string) *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print the version, what it was built from and what it brings for the kernel"}
	return command.Reading(cmd, command.NewOutput(cmd.Flags()),
		func(*cobra.Command, []string) (versions, error) { return allVersions(version), nil }, printVersions)
}

func allVersions(version string) versions {
	v := versions{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Protocol: api.ControlProtocol}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range build.Settings {
			switch setting.Key {
			case "vcs.revision":
				v.Commit = setting.Value
			case "vcs.time":
				v.Date = setting.Value
			case "vcs.modified":
				v.Modified = setting.Value == "true"
			}
		}
	}
	for _, o := range objects.All() {
		sum := sha256.Sum256(o.Content)
		v.Objects = append(v.Objects, kernelObject{o.Name, o.Layout, hex.EncodeToString(sum[:])})
	}
	return v
}

func printVersions(table *command.Table, v versions) {
	table.Line("ballast %s", v.Version)
	commit := command.OrDash(v.Commit)
	if v.Modified {
		commit += ", modified"
	}
	table.Row("commit", commit)
	table.Row("of", command.OrDash(v.Date))
	table.Row("go", v.Go+" "+v.Platform)
	table.Row("control protocol", v.Protocol)
	table.Line("")
	table.Row("KERNEL OBJECT", "MAP LAYOUT", "SHA-256")
	for _, o := range v.Objects {
		table.Row(o.Name, command.OrDash(o.Layout), o.SHA256)
	}
}
