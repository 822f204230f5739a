package report

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/bench"
)

// Names in the archive.
const (
	folder   = "ballast-report/"
	fileText = "report.txt"
	fileJSON = "report.json"
)

// Report is what one run has measured, and where.
type Report struct {
	Version  string           `json:"version"` // of Ballast
	Date     string           `json:"date"`    // YYYY-MM-DD, UTC
	Rounds   int              `json:"rounds"`
	Repeat   uint32           `json:"repeat"` // packets of each measurement
	Seconds  float64          `json:"seconds"`
	Machine  Machine          `json:"machine"`
	Cycles   bench.CycleRate  `json:"cycles"`
	Datapath []bench.Cell     `json:"datapath"`
	Veth     []bench.VethCell `json:"veth"`
	Cards    []Card           `json:"cards,omitempty"` // sender and tested
	Wire     []bench.CardCell `json:"wire,omitempty"`  // between them
}

// Clean takes out of a report what tells whose the machine is, by whatever field it came.
func (r *Report) Clean(root fs.FS) error {
	secret, err := identities(root)
	if err != nil {
		return err
	}
	return errors.Join(clean(&r.Machine, secret), clean(&r.Cards, secret))
}

func clean[T any](part *T, secret []string) error {
	text, err := json.Marshal(part)
	if err != nil {
		return fmt.Errorf("read a part of the report: %w", err)
	}
	var cleaned T
	if err := json.Unmarshal(scrub(text, secret), &cleaned); err != nil {
		return fmt.Errorf("remove what tells whose the machine is: %w", err)
	}
	*part = cleaned
	return nil
}

// Write makes an archive (tar, gzip) of a clean report, as JSON and as text for people. There must be no such file yet.
func Write(file string, r *Report, text []byte) error {
	numbers, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	archive, err := pack(map[string][]byte{fileJSON: numbers, fileText: text})
	if err != nil {
		return fmt.Errorf("pack the report: %w", err)
	}
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	_, err = out.Write(archive)
	return errors.Join(err, out.Close())
}

func pack(files map[string][]byte) ([]byte, error) {
	var archive bytes.Buffer
	compressed := gzip.NewWriter(&archive)
	packed := tar.NewWriter(compressed)
	for _, name := range []string{fileText, fileJSON} {
		// No owner, and the day alone: neither says anything of the machine.
		header := tar.Header{Name: folder + name, Mode: 0o644, Size: int64(len(files[name])), ModTime: time.Now().UTC().Truncate(24 * time.Hour)}
		if err := packed.WriteHeader(&header); err != nil {
			return nil, err
		}
		if _, err := packed.Write(files[name]); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(packed.Close(), compressed.Close()); err != nil {
		return nil, err
	}
	return archive.Bytes(), nil
}
