package console

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
)

// Lengths of a token: nobody guesses the shortest, and no file that is none is read to its end.
const (
	tokenMin = 16
	tokenMax = 1024
)

// token is in a file, which is read whenever it is needed: another content ends what the one before allowed.
type token struct {
	path string
	log  *slog.Logger

	mutex sync.Mutex
	said  string // why the file cannot be used
}

func readToken(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe hangs nobody
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no file: name one with a token in it", path)
	case info.Mode().Perm()&0o007 != 0:
		return nil, fmt.Errorf("%s can be used by everybody on this host (%v): chmod 600 it", path, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(file, tokenMax+2))
	if err != nil {
		return nil, err
	}
	if text = bytes.TrimSpace(text); len(text) < tokenMin || len(text) > tokenMax {
		return nil, fmt.Errorf("%s: a token has %d to %d characters: make one with `openssl rand -hex 32 > %s`", path, tokenMin, tokenMax, path)
	}
	return text, nil
}

// digest is of the token as it is now; false: nobody is let in.
func (t *token) digest() ([sha256.Size]byte, bool) {
	text, err := readToken(t.path)
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if err != nil {
		if t.said != err.Error() {
			t.said = err.Error()
			t.log.Error("the console's token cannot be read: it lets nobody in", "error", err)
		}
		return [sha256.Size]byte{}, false
	}
	t.said = ""
	return sha256.Sum256(text), true
}

// is compares in a time that tells nothing.
func (t *token) is(given string) bool {
	wanted, ok := t.digest()
	have := sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(have[:], wanted[:]) == 1 && ok
}
