package assets

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// ofVersion are the binaries of another Kubernetes that tests need.
var ofVersion = []string{APIServer, ControllerManager, Kubectl}

var release = regexp.MustCompile(`^v1\.([0-9]+)\.([0-9]+)$`)

// EnsureVersion builds the control plane of another Kubernetes release, such as
// v1.30.14, with progress written to log, and returns its folder: one to set
// KUBEBUILDER_ASSETS to. The etcd in it is ours.
func EnsureVersion(ctx context.Context, log io.Writer, version string) (string, error) {
	if !release.MatchString(version) {
		return "", fmt.Errorf("Kubernetes version %q: write it as v1.30.14", version) //nolint:staticcheck // a name
	}
	if os.Getenv(userEnv) != "" {
		return "", fmt.Errorf("%s is set: unset it to build Kubernetes %s", userEnv, version)
	}
	own, err := Ensure(ctx, log, Etcd)
	if err != nil {
		return "", err
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	out := filepath.Join(root, "bin", "kubernetes", version)
	module := filepath.Join(out, "module")
	if err := pin(ctx, module, version); err != nil {
		return "", fmt.Errorf("pin the modules of Kubernetes %s: %w", version, err)
	}
	b := builder{log: log, module: module, out: out}
	if err := b.ensure(ctx, ofVersion); err != nil {
		return "", err
	}
	etcd := filepath.Join(out, Etcd)
	if err := os.Remove(etcd); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if err := os.Symlink(own[Etcd], etcd); err != nil {
		return "", fmt.Errorf("put etcd beside Kubernetes %s: %w", version, err)
	}
	return out, nil
}

// pin writes a module that requires the release, once. Kubernetes requires its
// staging modules at no version, from its own tree: each is taken at the version
// that was released with it.
func pin(ctx context.Context, dir, version string) error {
	file := filepath.Join(dir, "go.mod")
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	tmp := dir + ".new"
	if err := errors.Join(os.RemoveAll(tmp), os.RemoveAll(dir), os.MkdirAll(tmp, 0o755)); err != nil {
		return err
	}
	download, err := goIn(ctx, tmp, "mod", "download", "-json", kubernetes+"@"+version)
	if err != nil {
		return err
	}
	var module struct{ GoMod string }
	if err := json.Unmarshal(download, &module); err != nil {
		return fmt.Errorf("read what was downloaded: %w", err)
	}
	theirs, err := os.ReadFile(module.GoMod)
	if err != nil {
		return err
	}
	var pins strings.Builder
	fmt.Fprintf(&pins, "module kubernetes\n\ngo 1.26.0\n\nrequire %s %s\n", kubernetes, version)
	staging := strings.Replace(version, "v1.", "v0.", 1)
	for line := range strings.Lines(string(theirs)) {
		from, _, ok := strings.Cut(line, " => ./staging/src/")
		if !ok {
			continue
		}
		from = strings.TrimSpace(strings.TrimPrefix(from, "replace "))
		fmt.Fprintf(&pins, "replace %s => %s %s\n", from, from, staging)
	}
	pins.WriteString("tool (\n")
	for _, name := range ofVersion {
		pins.WriteString("\t" + packages[name] + "\n")
	}
	pins.WriteString(")\n")
	if err := os.WriteFile(filepath.Join(tmp, "go.mod"), []byte(pins.String()), 0o644); err != nil {
		return err
	}
	// Some tests of dependencies cannot be resolved; the commands can.
	if _, err := goIn(ctx, tmp, "mod", "tidy", "-e"); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// goIn runs the go command in dir and returns what it printed.
func goIn(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, tail(errOut.String(), 20))
	}
	return out, nil
}
