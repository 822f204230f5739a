// Command pack writes the chart as an archive for Helm: pack DIRECTORY VERSION. It is named by the chart and its version, and holds the files of
// the chart that Git knows, in the order of their names. The same chart gives the same bytes: times are SOURCE_DATE_EPOCH.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const chart = "../chart"

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: SOURCE_DATE_EPOCH=SECONDS pack DIRECTORY VERSION")
		os.Exit(2)
	}
	path, err := pack(chart, os.Args[1], os.Args[2], os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
	fmt.Println(path)
}

// pack returns the path of the archive.
func pack(chart, directory, version, epoch string) (path string, err error) {
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return "", fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	listed, err := exec.Command("git", "-C", chart, "ls-files", "-z").Output()
	if err != nil {
		return "", fmt.Errorf("list the files of %s: %w", chart, err)
	}
	var content bytes.Buffer
	packed := gzip.NewWriter(&content)
	files := tar.NewWriter(packed)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(listed), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(chart, name)) // also of a link
		if err != nil {
			return "", err
		}
		if name == "Chart.yaml" {
			text = versioned(text, version)
		}
		header := &tar.Header{Name: "ballast/" + name, Mode: 0o644, Size: int64(len(text)), ModTime: time.Unix(seconds, 0), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if err := files.WriteHeader(header); err != nil {
			return "", err
		}
		if _, err := files.Write(text); err != nil {
			return "", err
		}
	}
	if err := files.Close(); err != nil {
		return "", err
	}
	if err := packed.Close(); err != nil {
		return "", err
	}
	path = filepath.Join(directory, "ballast-"+chartVersion(version)+".tgz")
	return path, os.WriteFile(path, content.Bytes(), 0o644)
}

// versioned is Chart.yaml of a version of packages.
func versioned(text []byte, version string) []byte {
	text = regexp.MustCompile(`(?m)^version: .*$`).ReplaceAll(text, []byte("version: "+chartVersion(version)))
	return regexp.MustCompile(`(?m)^appVersion: .*$`).ReplaceAll(text, []byte("appVersion: "+tag(version)))
}

// chartVersion is a version of packages as SemVer has it: 1.2.3~rc.1 is 1.2.3-rc.1.
func chartVersion(version string) string { return strings.ReplaceAll(version, "~", "-") }

// tag is a version as a tag of images may be.
func tag(version string) string { return strings.NewReplacer("~", "-", "+", "-").Replace(version) }
