package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"sigs.k8s.io/krew/pkg/index"
	"sigs.k8s.io/yaml"
)

const testVersion = "v0.0.1-test.1"

// TestARelease builds one for this platform from two checkouts.
func TestARelease(t *testing.T) {
	here := runtime.GOOS + "/" + runtime.GOARCH
	root := command(t, ".", "git", "rev-parse", "--show-toplevel")
	one, other := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "other")
	build := func(checkout, out string) {
		t.Helper()
		t.Chdir(checkout)
		if err := run(t.Context(), []string{"-out", out, "-version", testVersion, "-platforms", here}); err != nil {
			t.Fatal(err)
		}
	}
	clones := [2]string{}
	for i := range clones {
		clones[i] = filepath.Join(t.TempDir(), "clone")
		command(t, root, "git", "clone", "--quiet", root, clones[i])
		if err := os.MkdirAll(filepath.Join(clones[i], "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(root, "bin", "tools"), filepath.Join(clones[i], "bin", "tools")); err != nil {
			t.Fatal(err)
		}
	}
	build(clones[0], one)
	build(clones[1], other)

	t.Run("the same commit gives the same bytes", func(t *testing.T) {
		sums := read(t, filepath.Join(one, marker))
		if sums != read(t, filepath.Join(other, marker)) {
			t.Errorf("one:\n%s\nthe other:\n%s", sums, read(t, filepath.Join(other, marker)))
		}
		command(t, one, "sha256sum", "--check", "--strict", marker)
		entries, err := os.ReadDir(one)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(sums, "\n"); n != len(entries)-1 || n < 7 {
			t.Errorf("%d sums of %d files", n, len(entries))
		}
	})
	r := &release{version: testVersion}
	p := platform{runtime.GOOS, runtime.GOARCH}
	t.Run("the manager says its version", func(t *testing.T) {
		dir := t.TempDir()
		command(t, dir, "tar", "-xzf", filepath.Join(one, r.archive(p, manager)))
		if got := command(t, dir, "./"+manager, "--version"); !strings.Contains(got, testVersion) {
			t.Errorf("it says %q", got)
		}
		if license := read(t, filepath.Join(dir, "LICENSE")); !strings.Contains(license, "Apache License") {
			t.Error("the licence is not beside it")
		}
	})
	t.Run("the image is the manager's binary alone, for nobody", func(t *testing.T) {
		dir := t.TempDir()
		command(t, dir, "tar", "-xf", filepath.Join(one, imageFile))
		path, err := layout.FromPath(dir)
		if err != nil {
			t.Fatal(err)
		}
		top, err := path.ImageIndex()
		if err != nil {
			t.Fatal(err)
		}
		named, err := top.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		if got := named.Manifests[0].Annotations["io.containerd.image.name"]; got != "ghcr.io/ipam-guard/ipam-guard:"+testVersion {
			t.Errorf("its name is %q", got)
		}
		all, err := top.ImageIndex(named.Manifests[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		platforms, err := all.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		image, err := all.Image(platforms.Manifests[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Config.User != user || !slices.Equal(config.Config.Entrypoint, []string{"/manager"}) || config.Architecture != p.arch {
			t.Errorf("its configuration is %+v", config)
		}
		layers, err := image.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatalf("%d layers, %v", len(layers), err)
		}
		content, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		defer content.Close()
		archive := tar.NewReader(content)
		header, err := archive.Next()
		if err != nil {
			t.Fatal(err)
		}
		inside, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if header.Name != manager || header.Mode != 0o755 || !bytes.Equal(inside, unpacked(t, filepath.Join(one, r.archive(p, manager)), manager)) {
			t.Errorf("it holds %s, mode %o", header.Name, header.Mode)
		}
		if _, err := archive.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("it holds more: %v", err)
		}
	})
	t.Run("install.yaml uses the release's image", func(t *testing.T) {
		if all := read(t, filepath.Join(one, "install.yaml")); strings.Count(all, "image: ghcr.io/ipam-guard/ipam-guard:"+testVersion+"\n") != 1 {
			t.Error("it does not")
		}
	})
	t.Run("krew installs the plugin", func(t *testing.T) {
		manifest := filepath.Join(one, "ipam-guard.yaml")
		var plugin index.Plugin
		if err := yaml.UnmarshalStrict([]byte(read(t, manifest)), &plugin); err != nil {
			t.Fatal(err)
		}
		if got := plugin.Spec.Platforms[0].URI; !strings.HasSuffix(got, "/"+testVersion+"/"+r.archive(p, pluginName)) {
			t.Errorf("it is at %s", got)
		}
		krewRoot := t.TempDir()
		krew := filepath.Join(t.TempDir(), "krew")
		t.Chdir(filepath.Join(root, "internal", "release"))
		command(t, ".", "go", "build", "-o", krew, "sigs.k8s.io/krew/cmd/krew")
		t.Setenv("KREW_ROOT", krewRoot)
		t.Setenv("KREW_NO_UPGRADE_CHECK", "1")
		command(t, ".", krew, "install", "--manifest="+manifest, "--archive="+filepath.Join(one, r.archive(p, pluginName)))
		if got := command(t, ".", filepath.Join(krewRoot, "bin", pluginName), "--version"); !strings.Contains(got, testVersion) {
			t.Errorf("it says %q", got)
		}
	})
	t.Run("a folder that is no release is left alone", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "precious"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		err := run(context.WithoutCancel(t.Context()), []string{"-out", dir, "-version", testVersion})
		if err == nil || !strings.Contains(err.Error(), "it is no release") {
			t.Errorf("got %v", err)
		}
		read(t, filepath.Join(dir, "precious"))
	})
}

func TestCheckLicences(t *testing.T) {
	bill := func(licences string) []byte {
		return []byte(`{"components":[{"name":"some/module","evidence":{"licenses":[` + licences + `]}}]}`)
	}
	for name, tc := range map[string]struct {
		bill []byte
		want string
	}{
		"a licence that is allowed passes":           {bill(`{"license":{"id":"MIT"}}`), ""},
		"a licence that is not allowed is named":     {bill(`{"license":{"id":"AGPL-3.0"}}`), `some/module: licence "AGPL-3.0" is not allowed`},
		"one bad licence of two is enough":           {bill(`{"license":{"id":"MIT"}},{"license":{"id":"SSPL-1.0"}}`), "SSPL-1.0"},
		"a module whose licence is unknown is named": {bill(``), "some/module: its licence cannot be told"},
		"a bill without modules is none":             {[]byte(`{}`), "names no module"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkLicences(tc.bill)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestBadFlagsAreToldApart(t *testing.T) {
	for args, want := range map[string]string{
		"-version=1.0":     "of the form v1.2.3",
		"-platforms=linux": "is not of the form os/arch",
	} {
		if err := run(t.Context(), []string{args, "-out=" + filepath.Join(t.TempDir(), "x")}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}

func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	out, err := output(t.Context(), dir, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// unpacked is one file of a .tar.gz.
func unpacked(t *testing.T, archive, name string) []byte {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	compressed, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := tar.NewReader(compressed)
	for {
		header, err := files.Next()
		if err != nil {
			t.Fatalf("%s: no %s: %v", archive, name, err)
		}
		if header.Name == name {
			data, err := io.ReadAll(files)
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
	}
}
