package assets

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const pins = `module example.org/binaries

require (
	go.etcd.io/etcd/api/v3 v3.7.1 // indirect
	go.etcd.io/etcd/server/v3 v3.7.3 // indirect
	k8s.io/kubernetes v1.37.2 // indirect
)

require k8s.io/kube v9.9.9

replace k8s.io/kubernetes => k8s.io/kubernetes v0.0.0
`

func TestModuleOf(t *testing.T) {
	for name, test := range map[string]struct{ pkg, module, version string }{
		"finds the module that holds a package":       {"k8s.io/kubernetes/cmd/kubelet", "k8s.io/kubernetes", "v1.37.2"},
		"finds a module that is a package itself":     {"go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", "v3.7.3"},
		"does not take a module by half its name":     {"k8s.io/kubelet/x", "", ""},
		"finds a module required on a line by itself": {"k8s.io/kube/x", "k8s.io/kube", "v9.9.9"},
	} {
		t.Run(name, func(t *testing.T) {
			if module, version := moduleOf(test.pkg, []byte(pins)); module != test.module || version != test.version {
				t.Errorf("moduleOf(%s) = %s %s, want %s %s", test.pkg, module, version, test.module, test.version)
			}
		})
	}
}

func TestLdflagsTellKubernetesItsVersion(t *testing.T) {
	got := ldflags(APIServer, "v1.37.2")
	for _, want := range []string{".gitVersion=v1.37.2", ".gitMajor=1 ", ".gitMinor=37"} {
		if !strings.Contains(got+" ", want) {
			t.Errorf("flags = %q, want %q in them", got, want)
		}
	}
	if got := ldflags(Etcd, "v3.7.3"); strings.Contains(got, "-X") {
		t.Errorf("etcd's flags = %q", got)
	}
}

// folder is a builder's folders with one built binary.
func folder(t *testing.T) *builder {
	t.Helper()
	b := &builder{log: io.Discard, module: t.TempDir(), out: t.TempDir()}
	write(t, filepath.Join(b.module, "go.mod"), pins)
	write(t, filepath.Join(b.out, APIServer), "binary")
	stamp, err := b.stamp(APIServer)
	if err != nil {
		t.Fatal(err)
	}
	write(t, b.stampFile(APIServer), stamp)
	return b
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFresh(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*testing.T, *builder)
		want   bool
	}{
		"reuses a binary with the right stamp": {func(*testing.T, *builder) {}, true},
		"builds again when the versions change": {func(t *testing.T, b *builder) {
			write(t, filepath.Join(b.module, "go.mod"), strings.Replace(pins, "v1.37.2", "v1.37.3", 1))
		}, false},
		"builds again when the stamp is gone": {func(t *testing.T, b *builder) {
			if err := os.Remove(b.stampFile(APIServer)); err != nil {
				t.Fatal(err)
			}
		}, false},
		"builds again when the binary is gone": {func(t *testing.T, b *builder) {
			if err := os.Remove(filepath.Join(b.out, APIServer)); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := folder(t)
			test.change(t, b)
			stamp, err := b.stamp(APIServer)
			if err != nil {
				t.Fatal(err)
			}
			if got := b.fresh(APIServer, stamp); got != test.want {
				t.Errorf("fresh = %v, want %v", got, test.want)
			}
		})
	}
}

func TestEnsureUsesTheUsersOwn(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, Etcd), "")
	write(t, filepath.Join(dir, APIServer), "")
	t.Setenv(userEnv, dir)
	paths, err := Ensure(t.Context(), io.Discard, Etcd, APIServer)
	if err != nil {
		t.Fatal(err)
	}
	if paths[Etcd] != filepath.Join(dir, Etcd) || paths[APIServer] != filepath.Join(dir, APIServer) {
		t.Errorf("paths = %v", paths)
	}
}

func TestEnsureRefusesHalfOfTheUsersOwn(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, Etcd), "")
	t.Setenv(userEnv, dir)
	if _, err := Ensure(t.Context(), io.Discard, Etcd, APIServer); err == nil || !strings.Contains(err.Error(), APIServer) {
		t.Errorf("error = %v, want it to name %s", err, APIServer)
	}
}

func TestEnsureRefusesUnknownNames(t *testing.T) {
	if _, err := Ensure(t.Context(), io.Discard, "kube-dns"); err == nil {
		t.Error("no error")
	}
}

func TestLockLetsOneBuildRunAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		unlock, err := lock(t.Context(), path, io.Discard)
		if err == nil {
			unlock()
		}
		second <- err
	}()
	select {
	case err := <-second:
		t.Fatalf("a second lock was had beside the first: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	unlock()
	if err := <-second; err != nil {
		t.Errorf("after the first was freed: %v", err)
	}
}
