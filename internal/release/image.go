package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageFile is the image for all platforms, as an OCI layout in a tar file.
const imageFile = "ipam-guard-image.tar"

// user is the one that distroless images call nonroot.
const user = "65532:65532"

// image puts the manager, one static binary, on an empty base: nothing else is
// needed, for the cluster's certificates come with its ServiceAccount.
func (r *release) image(context.Context) error {
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range r.platforms {
		if !p.manager() {
			continue
		}
		image, err := r.imageFor(p)
		if err != nil {
			return fmt.Errorf("for %s: %w", p, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}},
		})
	}
	// One name for all platforms, which the layout's own index gives.
	dir := filepath.Join(r.work, "layout")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	name := r.images + ":" + r.version
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": r.version,
		"io.containerd.image.name":          name,
	})); err != nil {
		return err
	}
	return r.tarOf(dir, imageFile)
}

func (r *release) imageFor(p platform) (v1.Image, error) {
	binary, err := os.ReadFile(r.binary(p, manager))
	if err != nil {
		return nil, err
	}
	var files bytes.Buffer
	archive := tar.NewWriter(&files)
	if err := archive.WriteHeader(&tar.Header{Name: manager, Mode: 0o755, Size: int64(len(binary)), ModTime: r.time}); err != nil {
		return nil, err
	}
	if _, err := archive.Write(binary); err != nil {
		return nil, err
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: r.time}, CreatedBy: "manager " + r.version}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.os, p.arch, v1.Time{Time: r.time}
	config.Config = v1.Config{
		User: user, Entrypoint: []string{"/" + manager},
		Labels: map[string]string{
			"org.opencontainers.image.source":   "https://" + module,
			"org.opencontainers.image.version":  r.version,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(image, config)
}

// tarOf writes all of dir, in order of names, into one file of the release.
func (r *release) tarOf(dir, name string) error {
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: filepath.ToSlash(inside), Mode: 0o644, Size: int64(len(data)), ModTime: r.time}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err = archive.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return r.write(name, out.Bytes())
}
