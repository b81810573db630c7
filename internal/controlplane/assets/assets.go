// Package assets finds the control plane's binaries, and builds those that are
// missing from their Go modules.
package assets

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// The binaries that can be had.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Kubectl           = "kubectl"
	Kubelet           = "kubelet"
	Proxy             = "kube-proxy"
	Scheduler         = "kube-scheduler"
)

// userEnv names a folder of the user's that holds the binaries.
const userEnv = "KUBEBUILDER_ASSETS"

const (
	rootModule   = "github.com/ipam-guard/ipam-guard"
	binariesPath = "internal/controlplane/binaries" // the nested module that pins them
	binPath      = "bin/controlplane"
)

const kubernetes = "k8s.io/kubernetes"

var packages = map[string]string{
	Etcd:              "go.etcd.io/etcd/server/v3",
	APIServer:         kubernetes + "/cmd/kube-apiserver",
	ControllerManager: kubernetes + "/cmd/kube-controller-manager",
	Kubectl:           kubernetes + "/cmd/kubectl",
	Kubelet:           kubernetes + "/cmd/kubelet",
	Proxy:             kubernetes + "/cmd/kube-proxy",
	Scheduler:         kubernetes + "/cmd/kube-scheduler",
}

// Names are the binaries that can be had, sorted.
func Names() []string {
	names := make([]string, 0, len(packages))
	for name := range packages {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Ensure returns the paths of the named binaries. One that the user's
// KUBEBUILDER_ASSETS folder holds is taken from there. Others live in
// bin/controlplane of the repository; one that is missing there, or was built
// from other module versions, is built, with its progress written to log.
func Ensure(ctx context.Context, log io.Writer, names ...string) (map[string]string, error) {
	paths := make(map[string]string, len(names))
	var ours []string
	for _, name := range names {
		if packages[name] == "" {
			return nil, fmt.Errorf("no such control plane binary: %q (have %s)", name, strings.Join(Names(), ", "))
		}
		path, err := users(name)
		if err != nil {
			return nil, err
		}
		if path == "" {
			ours = append(ours, name)
			continue
		}
		paths[name] = path
	}
	if len(ours) == 0 {
		return paths, nil
	}
	root, err := Root()
	if err != nil {
		return nil, err
	}
	b := builder{log: log, module: filepath.Join(root, binariesPath), out: filepath.Join(root, binPath)}
	if err := b.ensure(ctx, ours); err != nil {
		return nil, err
	}
	for _, name := range ours {
		paths[name] = filepath.Join(b.out, name)
	}
	return paths, nil
}

// users is the path in the user's own folder, "" when ours is to be used. A
// folder without the two that every user of that variable needs is an error:
// mixing servers in silence would surprise.
func users(name string) (string, error) {
	dir := os.Getenv(userEnv)
	if dir == "" {
		return "", nil
	}
	path := filepath.Join(dir, name)
	switch _, err := os.Stat(path); {
	case err == nil:
		return path, nil
	case !errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("%s: %w", userEnv, err)
	case name == Etcd || name == APIServer:
		return "", fmt.Errorf("%s is set to %s, which holds no %s: unset it to use the one built here", userEnv, dir, name)
	}
	return "", nil
}

// Root is the repository's root, looked for upwards from the working folder.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(data, []byte("module "+rootModule+"\n")) {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("find the repository: no go.mod of %s here or above", rootModule)
		}
		dir = parent
	}
}

// builder builds binaries of one module into one folder.
type builder struct {
	log         io.Writer
	module, out string
}

func (b *builder) ensure(ctx context.Context, names []string) error {
	stamps := make(map[string]string, len(names))
	stale := func() ([]string, error) {
		var stale []string
		for _, name := range names {
			stamp, err := b.stamp(name)
			if err != nil {
				return nil, err
			}
			stamps[name] = stamp
			if !b.fresh(name, stamp) {
				stale = append(stale, name)
			}
		}
		return stale, nil
	}
	if missing, err := stale(); err != nil || len(missing) == 0 {
		return err
	}
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return fmt.Errorf("make folder for control plane binaries: %w", err)
	}
	unlock, err := lock(ctx, filepath.Join(b.out, ".lock"), b.log)
	if err != nil {
		return err
	}
	defer unlock()
	// Another build may have made them while this one waited.
	missing, err := stale()
	if err != nil {
		return err
	}
	for i, name := range missing {
		if err := b.build(ctx, name, stamps[name], fmt.Sprintf("%d/%d", i+1, len(missing))); err != nil {
			return err
		}
	}
	return nil
}

// stamp says what a binary is built from; it is compared, and read by people.
func (b *builder) stamp(name string) (string, error) {
	pins, err := os.ReadFile(filepath.Join(b.module, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("read versions of control plane binaries: %w", err)
	}
	module, version := moduleOf(packages[name], pins)
	if version == "" {
		return "", fmt.Errorf("%s/go.mod requires no module of %s", b.module, packages[name])
	}
	return fmt.Sprintf("%s %s %s/%s go.mod sha256:%x\n", module, version, runtime.GOOS, runtime.GOARCH, sha256.Sum256(pins)), nil
}

// moduleOf finds the module of pkg that a go.mod requires.
func moduleOf(pkg string, gomod []byte) (module, version string) {
	for line := range strings.Lines(string(gomod)) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) < 2 || !strings.HasPrefix(fields[1], "v") {
			continue
		}
		if m := fields[0]; (pkg == m || strings.HasPrefix(pkg, m+"/")) && len(m) > len(module) {
			module, version = m, fields[1]
		}
	}
	return module, version
}

func (b *builder) stampFile(name string) string { return filepath.Join(b.out, "."+name+".stamp") }

func (b *builder) fresh(name, stamp string) bool {
	if _, err := os.Stat(filepath.Join(b.out, name)); err != nil {
		return false
	}
	got, err := os.ReadFile(b.stampFile(name))
	return err == nil && string(got) == stamp
}

// Command builds ./cmd/NAME of the repository into bin, with its progress
// written to log, and returns its path.
func Command(ctx context.Context, log io.Writer, name string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "bin", name)
	if err := goBuild(ctx, log, root, "build "+name, "-o", path, "./cmd/"+name); err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	return path, nil
}

// goBuild runs "go build" in dir.
func goBuild(ctx context.Context, log io.Writer, dir, what string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-v"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly -buildvcs=false")
	var out bytes.Buffer
	progress := report(log, what)
	cmd.Stderr = io.MultiWriter(&out, progress)
	cmd.Stdout = cmd.Stderr
	err := cmd.Run()
	progress.done(err)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, tail(out.String(), 20))
	}
	return nil
}

func (b *builder) build(ctx context.Context, name, stamp, nth string) error {
	version := strings.Fields(stamp)[1]
	tmp := filepath.Join(b.out, "."+name+".new")
	what := fmt.Sprintf("build %s %s (%s)", name, version, nth)
	if err := goBuild(ctx, b.log, b.module, what, "-trimpath", "-ldflags", ldflags(name, version), "-o", tmp, packages[name]); err != nil {
		return fmt.Errorf("build %s: %w", name, err)
	}
	if err := os.Rename(tmp, filepath.Join(b.out, name)); err != nil {
		return fmt.Errorf("install %s: %w", name, err)
	}
	if err := os.WriteFile(b.stampFile(name), []byte(stamp), 0o644); err != nil {
		return fmt.Errorf("stamp %s: %w", name, err)
	}
	return nil
}

// ldflags give Kubernetes' binaries their version, as its own build does:
// without it the API server calls itself v0.0.0 and clients misjudge it.
func ldflags(name, version string) string {
	flags := "-s -w"
	if name == Etcd {
		return flags
	}
	const pkg = kubernetesVersionPackage
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return fmt.Sprintf("%s -X %s.gitVersion=%s -X %s.gitMajor=%s -X %s.gitMinor=%s", flags, pkg, version, pkg, major, pkg, minor)
}

const kubernetesVersionPackage = "k8s.io/component-base/version"

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
