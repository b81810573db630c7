// Package readme finds the commands in the README that tests run.
package readme

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ipam-guard/ipam-guard/internal/controlplane/assets"
)

// Commands are those that stand behind a comment of this name.
func Commands(name string) (string, error) {
	root, err := assets.Root()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		return "", err
	}
	_, after, ok := strings.Cut(string(text), "<!-- "+name+" -->\n```bash\n")
	if !ok {
		return "", fmt.Errorf("the README has no commands named %s", name)
	}
	script, _, _ := strings.Cut(after, "```")
	return script, nil
}
