// Package agentfile follows a file that `ballast agent` keeps for an application, and replaces when keys change.
package agentfile

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"
)

// followPeriod is how often a Follower looks whether its file is another one, at most.
const followPeriod = time.Second

const fileMax = 1 << 16 // bytes

// Secret is bytes that are hexadecimal digits in JSON.
type Secret []byte

// MarshalText returns hexadecimal digits.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(s)), nil }

// UnmarshalText reads hexadecimal digits.
func (s *Secret) UnmarshalText(text []byte) (err error) {
	*s, err = hex.DecodeString(string(text))
	return err
}

// String hides the bytes.
func (s Secret) String() string { return fmt.Sprintf("(%d bytes)", len(s)) }

// GoString hides the bytes.
func (s Secret) GoString() string { return s.String() }

// A Follower has what a file of JSON said when it was right last. It is safe for concurrent use.
type Follower[T any] struct {
	path  string
	check func(file, before *T) error

	mu     sync.Mutex
	file   *T
	looked time.Time
	stamp  os.FileInfo
	err    error
}

// Open reads a file. check says what is wrong with one, and may complete it; before is the one in use, nil at first. An error: the file is not there or not right.
func Open[T any](path string, check func(file, before *T) error) (*Follower[T], error) {
	f := &Follower[T]{path: path, check: check}
	if err := f.read(); err != nil {
		return nil, err
	}
	f.looked = time.Now()
	return f, nil
}

// read takes over the file, or leaves everything as it is.
func (f *Follower[T]) read() error {
	stamp, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	if !stamp.Mode().IsRegular() || stamp.Size() > fileMax {
		return fmt.Errorf("read %s: it is no file of at most %d bytes", f.path, fileMax)
	}
	text, err := os.ReadFile(f.path)
	if err != nil {
		return err
	}
	file := new(T)
	if err := json.Unmarshal(text, file); err != nil {
		return fmt.Errorf("read %s: %w", f.path, err)
	}
	if err := f.check(file, f.file); err != nil {
		return fmt.Errorf("read %s: %w", f.path, err)
	}
	f.file, f.stamp = file, stamp
	return nil
}

// follow takes over the file if it is another one.
func (f *Follower[T]) follow(now time.Time) {
	if now.Sub(f.looked) < followPeriod {
		return
	}
	f.looked = now
	stamp, err := os.Stat(f.path)
	if err == nil && f.err == nil && os.SameFile(stamp, f.stamp) && stamp.ModTime().Equal(f.stamp.ModTime()) && stamp.Size() == f.stamp.Size() {
		return
	}
	if err == nil {
		err = f.read()
	}
	f.err = err
}

// Current returns what the file says, which nobody may change. It looks for another file first, at most once a second.
func (f *Follower[T]) Current() *T {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.follow(time.Now())
	return f.file
}

// Again makes the next Current look at the file, whenever the last one did.
func (f *Follower[T]) Again() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looked = time.Time{}
}

// Err says why the file as it is now is not followed; nil: it is.
func (f *Follower[T]) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}
