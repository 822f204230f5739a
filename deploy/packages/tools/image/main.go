// Writes an OCI image for amd64 and arm64 as a tar, without a container runtime: image STAGE PROGRAM OUT VERSION REVISION. Times are SOURCE_DATE_EPOCH.
package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: image STAGE PROGRAM OUT VERSION REVISION")
		os.Exit(2)
	}
	if err := write(source{os.Args[1], os.Args[2], os.Args[4], os.Args[5]}, os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// A source is what an image is made of.
type source struct{ stage, program, version, revision string }

func write(s source, out string) error {
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("read SOURCE_DATE_EPOCH: %w", err)
	}
	made := time.Unix(epoch, 0).UTC()
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, architecture := range []string{"amd64", "arm64"} {
		image, err := build(s, architecture, made)
		if err != nil {
			return fmt.Errorf("make the image of %s: %w", architecture, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}},
		})
	}
	dir, err := os.MkdirTemp("", "ballast-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	image, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := image.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": s.program + ":" + tag(s.version)})); err != nil {
		return err
	}
	return archive(dir, out, made)
}

// tag is a version as a tag may be, which ~ and + are not part of.
func tag(version string) string {
	return strings.Map(func(r rune) rune {
		if r == '~' || r == '+' {
			return '-'
		}
		return r
	}, version)
}

// A file of the image. Without a source it is a directory.
type file struct {
	path, source string
	mode         int64
}

func build(s source, architecture string, made time.Time) (v1.Image, error) {
	documents := "usr/share/doc/" + s.program + "/"
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	for _, f := range []file{
		{"usr/", "", 0o755}, {"usr/bin/", "", 0o755}, {"usr/bin/" + s.program, filepath.Join(s.stage, architecture, s.program), 0o755},
		{"usr/share/", "", 0o755}, {"usr/share/doc/", "", 0o755}, {documents, "", 0o755},
		{documents + "copyright", filepath.Join(s.stage, "copyright"), 0o644},
		{documents + "third-party-licenses.gz", filepath.Join(s.stage, "third-party-licenses-"+s.program+".gz"), 0o644},
		{documents + "sbom.cdx.json", filepath.Join(s.stage, architecture, "sbom-"+s.program+".cdx.json"), 0o644},
		{"etc/", "", 0o755}, {"etc/ballast/", "", 0o700}, {"run/", "", 0o755}, {"tmp/", "", 0o1777}, {"var/", "", 0o755}, {"var/lib/", "", 0o755},
	} {
		if err := put(w, f, made); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
		mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: made}, CreatedBy: "make packages"}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config.OS, config.Architecture, config.Created = "linux", architecture, v1.Time{Time: made}
	config.Config.Entrypoint = []string{"/usr/bin/" + s.program}
	config.Config.Env = []string{"PATH=/usr/bin"}
	config.Config.Labels = map[string]string{
		"org.opencontainers.image.title":    s.program,
		"org.opencontainers.image.version":  s.version,
		"org.opencontainers.image.revision": s.revision,
		"org.opencontainers.image.licenses": "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)",
	}
	return mutate.ConfigFile(image, config)
}

func put(w *tar.Writer, f file, made time.Time) error {
	header := tar.Header{Name: f.path, Mode: f.mode, ModTime: made, Typeflag: tar.TypeDir, Format: tar.FormatPAX}
	var content []byte
	if f.source != "" {
		var err error
		if content, err = os.ReadFile(f.source); err != nil {
			return err
		}
		header.Typeflag, header.Size = tar.TypeReg, int64(len(content))
	}
	if err := w.WriteHeader(&header); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

// archive packs a directory's files, in the order of their names.
func archive(dir, out string, made time.Time) error {
	to, err := os.Create(out)
	if err != nil {
		return err
	}
	w := tar.NewWriter(to)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return put(w, file{path: name + "/", mode: 0o755}, made)
		}
		return put(w, file{path: name, source: path, mode: 0o644}, made)
	})
	if err == nil {
		err = w.Close()
	}
	if closed := to.Close(); err == nil {
		err = closed
	}
	return err
}
