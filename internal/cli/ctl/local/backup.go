// Backups: backup FILE.
package local

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/controller"
)

// Backup makes `ballast ctl backup`.
func Backup(c *ask.Control) *cobra.Command {
	replace := false
	cmd := &cobra.Command{
		Use: "backup FILE", Short: "Copy the store of this machine's controller, with all keys, to a file that only its owner can read",
		RunE: func(cmd *cobra.Command, args []string) error {
			remote, err := c.Remote()
			if err != nil {
				return err
			}
			if remote {
				return command.Usage("a backup has the keys of the fleet: run this as root on a controller, with --instance and its name, without --controller")
			}
			if args[0] == "-" && command.IsTerminal(cmd.OutOrStdout()) {
				return command.Usage("a backup is no text for a terminal: name a file, or redirect the output")
			}
			if !replace && args[0] != "-" {
				if err := absent(args[0]); err != nil {
					return err
				}
			}
			content, err := c.Stream(cmd, api.PathBackup)
			if err != nil {
				return err
			}
			defer content.Close()
			if args[0] == "-" {
				return copySummed(command.Bytes(cmd), content)
			}
			summary, err := writeBackup(args[0], content, replace)
			if err != nil {
				return err
			}
			return command.Print(cmd.OutOrStdout(), c.Output, summary, func(out *command.Table, s *controller.BackupSummary) { out.Line("%s: %s", args[0], s) })
		},
	}
	cmd.Flags().BoolVar(&replace, "force", false, "replace FILE if it exists")
	return cmd
}

// absent refuses a file that is there, before the whole store is read.
func absent(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("write %s: %w: name another file, or replace it with --force", path, fs.ErrExist)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// writeBackup makes a file once its content is whole and on the disk. Without replace, one that has appeared meanwhile stays.
func writeBackup(path string, content io.Reader, replace bool) (*controller.BackupSummary, error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // 0600
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	_, err = io.Copy(file, content)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	summary, err := controller.SummariseBackup(file.Name())
	if err != nil {
		return nil, err
	}
	if !replace {
		err := unix.Renameat2(unix.AT_FDCWD, file.Name(), unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
		if err == nil || !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EEXIST) {
			return summary, err
		}
		if err := absent(path); err != nil { // EINVAL: NFS cannot do both in one step
			return nil, err
		}
	}
	return summary, os.Rename(file.Name(), path)
}

// copySummed copies a backup, and compares it with the checksum at its end.
func copySummed(to io.Writer, from io.Reader) error {
	sum, last, buffer := sha256.New(), []byte(nil), make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if _, failed := to.Write(buffer[:n]); failed != nil {
			return fmt.Errorf("write the backup: %w", failed)
		}
		last = append(last, buffer[:n]...)
		if more := len(last) - sha256.Size; more > 0 {
			sum.Write(last[:more])
			last = bytes.Clone(last[more:])
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read the backup: %w: what was written is no whole backup", err)
		}
	}
	if !bytes.Equal(last, sum.Sum(nil)) {
		return errors.New("its checksum is wrong: what was written is no whole backup: try again")
	}
	return nil
}
