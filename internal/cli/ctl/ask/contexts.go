// Contexts: fleets that somebody has given names, in a file of their own.
package ask

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/cli/command"
)

// A Context is who is asked, and how.
type Context struct {
	Controllers []string `yaml:"controllers,omitempty" json:"controllers,omitempty"`
	Instance    string   `yaml:"instance,omitempty" json:"instance,omitempty"`
	Socket      string   `yaml:"socket,omitempty" json:"socket,omitempty"`
	RunDir      string   `yaml:"run_dir,omitempty" json:"run_dir,omitempty"`
	TLSDir      string   `yaml:"tls_dir,omitempty" json:"tls_dir,omitempty"`
	TLSName     string   `yaml:"tls_name,omitempty" json:"tls_name,omitempty"`
}

// Contexts are all that somebody has.
type Contexts struct {
	Current  string             `yaml:"current,omitempty"`
	Contexts map[string]Context `yaml:"contexts,omitempty"`
}

// maxContexts bounds the file, in bytes.
const maxContexts = 1 << 20

var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// ContextsPath is where contexts are.
func ContextsPath() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the file of contexts: %w", err)
	}
	return filepath.Join(dir, "ballast", "contexts.yaml"), nil
}

// LoadContexts reads them; a file that is not there has none.
func LoadContexts() (*Contexts, error) {
	path, err := ContextsPath()
	if err != nil {
		return nil, err
	}
	all := &Contexts{Contexts: map[string]Context{}}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe hangs nobody
	if errors.Is(err, os.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read contexts: %w", err)
	}
	defer file.Close()
	if err := trusted(file); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(file, maxContexts))
	if err != nil {
		return nil, fmt.Errorf("read contexts: %w", err)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(all); err != nil && err != io.EOF {
		return nil, fmt.Errorf("read contexts of %s: %w", path, err)
	}
	if all.Contexts == nil {
		all.Contexts = map[string]Context{}
	}
	return all, nil
}

// trusted refuses what somebody else may have written: it says whom commands are sent to.
func trusted(file *os.File) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return fmt.Errorf("read contexts of %s: %w", file.Name(), err)
	}
	switch me := uint32(os.Geteuid()); {
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("read contexts of %s: it is no file", file.Name())
	case stat.Uid != me && stat.Uid != 0:
		return fmt.Errorf("read contexts of %s: it belongs to user %d, and this runs as user %d: say --controller or --instance, or run it as that user (sudo -H has root's own)",
			file.Name(), stat.Uid, me)
	case stat.Mode&0o022 != 0:
		return fmt.Errorf("read contexts of %s: others may write it: chmod 600 %[1]s", file.Name())
	}
	return nil
}

// ChangeContexts changes the file as a whole, one after another.
func ChangeContexts(change func(*Contexts) error) error {
	path, err := ContextsPath()
	if err != nil {
		return err
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // a link stays one
	}
	unlock, err := lock(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer unlock()
	all, err := LoadContexts()
	if err != nil {
		return err
	}
	if err := change(all); err != nil {
		return err
	}
	text, err := yaml.Marshal(all)
	if err != nil {
		return err
	}
	return replaceFile(path, text)
}

// lock makes a directory, and keeps others out until unlock is called, or the process ends.
func lock(dir string) (unlock func(), err error) {
	if err := owned(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("write contexts: %w", err)
	}
	held, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("write contexts: %w", err)
	}
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		held.Close()
		return nil, fmt.Errorf("write contexts: lock %s: %w", dir, err)
	}
	return func() { held.Close() }, nil
}

// owned refuses to write where somebody else rules: root would follow that user's links.
func owned(dir string) error {
	for {
		var stat unix.Stat_t
		err := unix.Stat(dir, &stat)
		if err == nil && stat.Uid != uint32(os.Geteuid()) && stat.Uid != 0 {
			return fmt.Errorf("write contexts: %s belongs to user %d, and this runs as user %d: run it as that user", dir, stat.Uid, os.Geteuid())
		}
		if err == nil || dir == filepath.Dir(dir) {
			return nil
		}
		dir = filepath.Dir(dir)
	}
}

// replaceFile leaves the old file or the new one, whenever the process ends.
func replaceFile(path string, text []byte) error {
	fresh := path + ".new"
	os.Remove(fresh) // of a process that was killed
	file, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	return nil
}

// CheckContextName refuses what is no name.
func CheckContextName(name string) error {
	if !contextName.MatchString(name) {
		return command.Usage("context %q: use up to 63 letters, digits and . _ -, beginning with a letter or digit", name)
	}
	return nil
}
