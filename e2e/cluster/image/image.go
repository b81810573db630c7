// Package image makes container images of one static binary, without a
// container engine.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
)

const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
	// nameAnnotation is where containerd looks for an image's name.
	nameAnnotation = "io.containerd.image.name"
)

// user is nobody's: the one that distroless images call nonroot.
const user = "65532:65532"

// Write writes to file an OCI layout that holds one image of this name: the
// binary, as /NAME-OF-THE-BINARY and entrypoint, on an empty base.
func Write(file, name, binary string) error {
	data, err := os.ReadFile(binary)
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	err = write(out, name, "/"+path.Base(binary), data)
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	return nil
}

func write(w io.Writer, name, entrypoint string, binary []byte) error {
	var layer bytes.Buffer
	if err := files(&layer, file{entrypoint[1:], 0o755, binary}); err != nil {
		return err
	}
	config, err := blobOf(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"User": user, "Entrypoint": []string{entrypoint}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer.Bytes())}},
	})
	if err != nil {
		return err
	}
	manifest, err := blobOf(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType,
		"config": descriptor(configType, config),
		"layers": []any{descriptor(layerType, layer.Bytes())},
	})
	if err != nil {
		return err
	}
	top := descriptor(manifestType, manifest)
	top["annotations"] = map[string]string{nameAnnotation: name}
	index, err := blobOf(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": []any{top}})
	if err != nil {
		return err
	}
	all := []file{{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {"index.json", 0o644, index}}
	for _, blob := range [][]byte{manifest, config, layer.Bytes()} {
		all = append(all, file{"blobs/sha256/" + digest(blob)[len("sha256:"):], 0o644, blob})
	}
	return files(w, all...)
}

type file struct {
	name string
	mode int64
	data []byte
}

func files(w io.Writer, all ...file) error {
	archive := tar.NewWriter(w)
	for _, f := range all {
		if err := archive.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))}); err != nil {
			return err
		}
		if _, err := archive.Write(f.data); err != nil {
			return err
		}
	}
	return archive.Close()
}

func blobOf(v any) ([]byte, error) { return json.Marshal(v) }

func descriptor(mediaType string, blob []byte) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": digest(blob), "size": len(blob)}
}

func digest(blob []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(blob)) }
