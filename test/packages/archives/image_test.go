package archives

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// blobs are the files of an archive by their names.
func blobs(t *testing.T, from io.Reader) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	for r := tar.NewReader(from); ; {
		header, err := r.Next()
		if err == io.EOF {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if found[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// reference is a name and a tag (OCI distribution specification, "Pulling manifests").
var reference = regexp.MustCompile(`^[a-z0-9]+(?:-[a-z0-9]+)*:[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)

// An OCI image as a runtime reads it: index, manifest, layer; and the program in it runs.
func TestImagesAreWholeAndRun(t *testing.T) {
	long(t)
	for program, version := range map[string]string{"ballast": "version", "ballast-kube": "--version"} {
		t.Run(program, func(t *testing.T) { checkImage(t, program, version) })
	}
}

// checkImage runs a program of an image to tell its version.
func checkImage(t *testing.T, program, version string) {
	text, err := os.ReadFile(archive(t, program+"-[0-9]*-oci.tar"))
	if err != nil {
		t.Fatal(err)
	}
	files := blobs(t, bytes.NewReader(text))
	blob := func(digest string) []byte {
		content := files["blobs/"+strings.Replace(digest, ":", "/", 1)]
		if sum := sha256.Sum256(content); "sha256:"+hex.EncodeToString(sum[:]) != digest {
			t.Fatalf("%s is another", digest)
		}
		return content
	}
	type descriptor struct {
		Digest      string
		Platform    struct{ Architecture string }
		Annotations map[string]string
	}
	var index struct{ Manifests []descriptor }
	read(t, files["index.json"], &index)
	if len(index.Manifests) != 1 {
		t.Fatalf("%+v", index)
	}
	if name := index.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; !reference.MatchString(name) {
		t.Errorf("podman takes no image of the name %q", name)
	}
	read(t, blob(index.Manifests[0].Digest), &index)
	if len(index.Manifests) != 2 {
		t.Fatalf("%+v", index)
	}
	for _, image := range index.Manifests {
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		read(t, blob(image.Digest), &manifest)
		var config struct {
			Architecture string
			Config       struct {
				Entrypoint []string
				Labels     map[string]string
			}
		}
		read(t, blob(manifest.Config.Digest), &config)
		if config.Architecture != image.Platform.Architecture || config.Config.Labels["org.opencontainers.image.version"] == "" || len(manifest.Layers) != 1 {
			t.Errorf("%+v %+v", config, manifest)
		}
		if config.Architecture != runtime.GOARCH || os.Geteuid() != 0 {
			continue
		}
		layer, err := gzip.NewReader(bytes.NewReader(blob(manifest.Layers[0].Digest)))
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		path := filepath.Join(dir, config.Config.Entrypoint[0])
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, blobs(t, layer)[strings.TrimPrefix(config.Config.Entrypoint[0], "/")], 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("chroot", dir, config.Config.Entrypoint[0], version).CombinedOutput(); err != nil || !strings.HasPrefix(string(out), program+" ") {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// The same commit gives the same bytes, in whatever folder.
func TestPackagesAreReproducible(t *testing.T) {
	long(t)
	built := make([]map[string]string, 2)
	for i := range built {
		dir := filepath.Join(t.TempDir(), strings.Repeat("x", 1+20*i))
		clone := exec.Command("sh", "-ec", `git clone -q "$0" "$1"; cd "$1"; make generate build packages`, root, dir)
		if out, err := clone.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		made, err := filepath.Glob(filepath.Join(dir, "bin/packages/*"))
		if err != nil || len(made) != 14 {
			t.Fatalf("made %v (%v)", made, err)
		}
		built[i] = map[string]string{}
		for _, path := range made {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(content)
			built[i][filepath.Base(path)] = hex.EncodeToString(sum[:])
		}
	}
	for name, sum := range built[0] {
		if built[1][name] != sum {
			t.Errorf("%s: %s and %s", name, sum, built[1][name])
		}
	}
}

func read(t *testing.T, text []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}
