//go:build linux

package cluster

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/ipam-guard/ipam-guard/e2e/certmanager"
	"github.com/ipam-guard/ipam-guard/e2e/readme"
	"github.com/ipam-guard/ipam-guard/internal/controlplane/assets"
)

// Images that every cluster has. There is no registry to pull others from.
const (
	ManagerImage     = "ipam-guard.test/ipam-guard:1"
	certManagerImage = "ipam-guard.test/cert-manager:1"
)

//go:embed certmanager.yaml
var certManagerManifest []byte

// InstallCertManager installs cert-manager and waits until it runs.
func (c *Cluster) InstallCertManager(ctx context.Context) error {
	definitions, err := certmanager.Definitions(ctx)
	if err != nil {
		return err
	}
	var manifest bytes.Buffer
	for _, d := range definitions {
		data, err := yaml.Marshal(d)
		if err != nil {
			return fmt.Errorf("definition %s: %w", d.Name, err)
		}
		manifest.WriteString("---\n")
		manifest.Write(data)
	}
	manifest.WriteString("---\n")
	manifest.Write(certManagerManifest)
	apply := c.Command(ctx, "kubectl", "apply", "--server-side", "-f", "-")
	apply.Stdin = &manifest
	for _, cmd := range []*exec.Cmd{
		apply,
		c.Command(ctx, "kubectl", "-n", "cert-manager", "wait", "--for=condition=Available", "--timeout=5m", "deployment", "--all"),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("install cert-manager: %w\n%s", err, out)
		}
	}
	return nil
}

// Checkout copies config to a folder of the cluster's, for users edit theirs.
func (c *Cluster) Checkout() (string, error) {
	root, err := assets.Root()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(c.Dir(), "checkout")
	if err := os.CopyFS(filepath.Join(dir, "config"), os.DirFS(filepath.Join(root, "config"))); err != nil {
		return "", fmt.Errorf("copy config: %w", err)
	}
	return dir, nil
}

// Command is a command with this cluster's kubeconfig; kubectl is the
// cluster's own.
func (c *Cluster) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	tools := ""
	if root, err := assets.Root(); err == nil {
		tools = filepath.Join(root, "bin", "tools")
	}
	if name == assets.Kubectl {
		name = c.kubectl
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "IMAGE="+ManagerImage,
		"PATH="+filepath.Dir(c.kubectl)+":"+tools+":"+os.Getenv("PATH"))
	return cmd
}

// Install installs IPAM Guard by the README's commands and waits until it
// runs.
func (c *Cluster) Install(ctx context.Context) error {
	dir, err := c.Checkout()
	if err != nil {
		return err
	}
	for _, name := range []string{"image", "install"} {
		if err := c.Readme(ctx, dir, name); err != nil {
			return err
		}
	}
	return c.WaitAvailable(ctx)
}

// WaitAvailable waits until IPAM Guard's Deployment is available.
func (c *Cluster) WaitAvailable(ctx context.Context) error {
	out, err := c.Command(ctx, "kubectl", "-n", "ipam-guard-system", "wait", "--for=condition=Available", "--timeout=5m",
		"deployment/ipam-guard-manager").CombinedOutput()
	if err != nil {
		return fmt.Errorf("wait for IPAM Guard: %w\n%s", err, out)
	}
	return nil
}

// Readme runs commands of the README in a folder.
func (c *Cluster) Readme(ctx context.Context, dir, name string) error {
	script, err := readme.Commands(name)
	if err != nil {
		return err
	}
	cmd := c.Command(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the README's %s: %w\n%s", name, err, out)
	}
	return nil
}
