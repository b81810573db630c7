package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/krew/pkg/constants"
	"sigs.k8s.io/krew/pkg/index"
	"sigs.k8s.io/yaml"
)

// install writes config/default with this release's image.
func (r *release) install(ctx context.Context) error {
	dir := filepath.Join(r.work, "install")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	base, err := filepath.Rel(dir, filepath.Join(r.root, "config", "default"))
	if err != nil {
		return err
	}
	kustomization, err := yaml.Marshal(map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"resources": []string{base},
		"images":    []map[string]string{{"name": "ghcr.io/ipam-guard/ipam-guard", "newName": r.images, "newTag": r.version}},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), kustomization, 0o644); err != nil { //nolint:gosec // no secret
		return err
	}
	all, err := output(ctx, r.root, filepath.Join("bin", "tools", "kustomize"), "build", dir)
	if err != nil {
		return err
	}
	if !strings.Contains(all, "image: "+r.images+":"+r.version+"\n") {
		return fmt.Errorf("the Deployment does not use image %s:%s", r.images, r.version)
	}
	return r.write("install.yaml", []byte(all+"\n"))
}

// krew writes the manifest by which krew installs the plugin.
func (r *release) krew(context.Context) error {
	manifest := index.Plugin{
		TypeMeta:   metav1.TypeMeta{APIVersion: constants.CurrentAPIVersion, Kind: constants.PluginKind},
		ObjectMeta: metav1.ObjectMeta{Name: "ipam-guard"},
		Spec: index.PluginSpec{
			Version:          r.version,
			Homepage:         "https://" + module,
			ShortDescription: "Find and sweep IPAMHandles that Calico leaked",
			Description: "Checks a cluster's Calico IPAM for leaked handles and for what else\n" +
				"disagrees, explains each verdict, sweeps orphans safely, and restores\n" +
				"what was swept. Works with IPAM Guard's manager installed or without.\n",
		},
	}
	for _, p := range r.platforms {
		archive := r.archive(p, pluginName)
		sum, err := r.sum(archive)
		if err != nil {
			return err
		}
		bin := filepath.Base(r.binary(p, pluginName))
		manifest.Spec.Platforms = append(manifest.Spec.Platforms, index.Platform{
			URI: r.downloads + "/" + r.version + "/" + archive, Sha256: sum, Bin: bin,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"os": p.os, "arch": p.arch}},
			Files:    []index.FileOperation{{From: bin, To: "."}, {From: "LICENSE", To: "."}},
		})
	}
	data, err := yaml.Marshal(manifest)
	if err != nil {
		return err
	}
	// A plugin's manifest has no creation time.
	return r.write("ipam-guard.yaml", []byte(strings.Replace(string(data), "  creationTimestamp: null\n", "", 1)))
}

func (r *release) sum(name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(r.out, name))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(data)), nil
}

// checksums are of all files, as sha256sum --check reads them.
func (r *release) checksums(context.Context) error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, e := range entries {
		sum, err := r.sum(e.Name())
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%s  %s\n", sum, e.Name())
	}
	return r.write(marker, []byte(lines.String()))
}
