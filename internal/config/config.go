// Package config turns the configuration file, strict YAML, into a model.Fleet and back.
package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/ballast-lb/ballast/internal/model"
)

// MaxBytes is the size of the largest configuration file that is read.
const MaxBytes = 16 << 20

// File is a configuration file that was read without error.
type File struct {
	Path   string
	SHA256 string // of the file's bytes, hexadecimal
	Fleet  model.Fleet
	// Exposed says that others than the owner can read the keys, and what to do; empty: they cannot.
	Exposed string
}

// Error is one objection to a configuration file. It unwraps to *model.Invalid.
type Error struct {
	File   string
	Line   int // counted from 1
	Reason *model.Invalid
}

// Error returns file:line: key.path: problem: remedy.
func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason) }

// Unwrap returns the objection without its place in the file.
func (e *Error) Unwrap() error { return e.Reason }

// Load reads, parses and validates a file. Its errors are those of Parse, or of opening and reading the file. A pipe is none: whoever
// opens one waits for a writer.
func Load(path string) (*File, error) {
	text, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	fleet, err := Parse(path, text)
	if err != nil {
		return nil, err
	}
	return &File{Path: path, SHA256: Sum(text), Fleet: fleet, Exposed: Exposed(path)}, nil
}

// Changed reports whether a file is another than the one with that SHA256, or cannot be read.
func Changed(path, sha256 string) bool {
	text, err := read(path)
	return err != nil || Sum(text) != sha256
}

func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var content bytes.Buffer
	content.Grow(int(min(info.Size(), MaxBytes)) + bytes.MinRead) // io.ReadAll would take three times as much
	if _, err := content.ReadFrom(io.LimitReader(file, MaxBytes+1)); err != nil {
		return nil, err
	}
	return content.Bytes(), nil
}

// Exposed says who else can read a file: a configuration has keys in it. Empty: nobody, or it is no file.
func Exposed(path string) string {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o077 == 0 {
		return ""
	}
	return fmt.Sprintf("%s: others can read the keys (mode %04o): chmod 600 %s", path, info.Mode().Perm(), path)
}

// Sum returns the hexadecimal SHA-256 of a file's text, as in File.
func Sum(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Parse reads a configuration, applies the defaults and validates the result. name is used in errors only. The error is nil or
// joined (errors.Join) from *Error in the order of the lines: unknown and repeated keys, values of the wrong kind,
// and, when there are none of those, everything that model.Fleet.Validate objects to.
func Parse(name string, text []byte) (model.Fleet, error) {
	r := newReader(name)
	var fleet model.Fleet
	r.fleet(text, &fleet)
	if r.Failed() == 0 {
		fleet.ApplyDefaults()
		r.addInvalid(fleet.Validate())
	}
	if r.Failed() > 0 {
		return model.Fleet{}, r.joined()
	}
	return fleet, nil
}
