// Package below reads files that a fleet names, on hosts of controllers: those of one folder alone, so that whoever may change the fleet cannot read others.
package below

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// maxBytes is the size of the largest file that is read.
const maxBytes = 4 << 20

// Read reads a regular file of a folder. Links are followed within the folder, as ConfigMaps of Kubernetes have them, and not out of it. Its errors name the
// file, and nothing that is in it.
func Read(dir, name string) ([]byte, error) {
	text, err := read(dir, name)
	if path := new(fs.PathError); errors.As(err, &path) { // it names the file as seen from the folder
		err = path.Err
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, name), err)
	}
	return text, nil
}

func read(dir, name string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // whoever opens a pipe waits for a writer
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("not a regular file"))
	}
	text, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = fmt.Errorf("more than %d bytes", maxBytes)
	}
	return text, err
}
