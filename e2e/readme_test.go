package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ipam-guard/ipam-guard/e2e/readme"
)

// readme runs the README's commands that stand behind a comment of this name,
// as they stand there.
func (i *installation) readme(t testing.TB, name string) {
	t.Helper()
	script, err := readme.Commands(name)
	must(t, err)
	if out, err := i.command(t, "bash", "-euo", "pipefail", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("the README's %s: %v\n%s", name, err, out)
	}
}

// command runs at the repository's root, with the cluster's kubectl.
func (i *installation) command(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	binaries := filepath.Join(root(t), "bin", "controlplane")
	if name == "kubectl" {
		name = filepath.Join(binaries, name)
	}
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+i.cp.Kubeconfig(), "PATH="+binaries+":"+os.Getenv("PATH"))
	return cmd
}
