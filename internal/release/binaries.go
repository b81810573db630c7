package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	module     = "github.com/ipam-guard/ipam-guard"
	pluginName = "kubectl-ipam_guard"
	manager    = "manager"
)

// binaries builds the plugin for each platform, and the manager for those that
// it runs on, and packs them.
func (r *release) binaries(ctx context.Context) error {
	for _, p := range r.platforms {
		names := []string{pluginName}
		if p.manager() {
			names = append(names, manager)
		}
		for _, name := range names {
			if err := r.build(ctx, p, name); err != nil {
				return err
			}
			if err := r.pack(p, name); err != nil {
				return fmt.Errorf("pack %s for %s: %w", name, p, err)
			}
		}
	}
	return nil
}

// binary is where build puts a command.
func (r *release) binary(p platform, name string) string {
	if p.os == "windows" {
		name += ".exe"
	}
	return filepath.Join(r.work, p.os+"-"+p.arch, name)
}

func (r *release) build(ctx context.Context, p platform, name string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly",
		"-ldflags=-s -w -buildid= -X "+module+"/internal/version.version="+r.version,
		"-o", r.binary(p, name), "./cmd/"+name)
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOOS="+p.os, "GOARCH="+p.arch, "GOAMD64=v1", "GOARM64=v8.0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for %s: %w\n%s", name, p, err, out)
	}
	return nil
}

// archive is the file that pack makes.
func (r *release) archive(p platform, name string) string {
	product := map[string]string{pluginName: "kubectl-ipam_guard", manager: "ipam-guard-manager"}[name]
	ext := ".tar.gz"
	if p.os == "windows" {
		ext = ".zip"
	}
	return product + "_" + strings.TrimPrefix(r.version, "v") + "_" + p.os + "_" + p.arch + ext
}

// packed is one file of an archive.
type packed struct {
	name string
	mode fs.FileMode
	data []byte
}

func (r *release) pack(p platform, name string) error {
	path := r.binary(p, name)
	binary, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	license, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	files := []packed{{filepath.Base(path), 0o755, binary}, {"LICENSE", 0o644, license}}
	var out bytes.Buffer
	if p.os == "windows" {
		err = r.zip(&out, files)
	} else {
		err = r.tarball(&out, files)
	}
	if err != nil {
		return err
	}
	return r.write(r.archive(p, name), out.Bytes())
}

func (r *release) tarball(w io.Writer, files []packed) error {
	compressed, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	for _, f := range files {
		header := &tar.Header{Format: tar.FormatPAX, Name: f.name, Mode: int64(f.mode), Size: int64(len(f.data)), ModTime: r.time}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(f.data); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return compressed.Close()
}

func (r *release) zip(w io.Writer, files []packed) error {
	archive := zip.NewWriter(w)
	for _, f := range files {
		header := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: r.time}
		header.SetMode(f.mode)
		into, err := archive.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := into.Write(f.data); err != nil {
			return err
		}
	}
	return archive.Close()
}

// write writes one file of the release.
func (r *release) write(name string, data []byte) error {
	return os.WriteFile(filepath.Join(r.out, name), data, 0o644) //nolint:gosec // for everybody
}
