package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
)

// process is the plugin as a process of its own.
type process struct {
	*exec.Cmd
	errOut bytes.Buffer
}

func (p *process) code(t *testing.T) int {
	t.Helper()
	err := p.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return p.ProcessState.ExitCode()
}

// screen collects what a terminal is sent.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
	done chan struct{}
}

func watch(terminal io.Reader) *screen {
	s := &screen{done: make(chan struct{})}
	go func() {
		defer close(s.done)
		buffer := make([]byte, 4096)
		for {
			n, err := terminal.Read(buffer)
			s.mu.Lock()
			s.text.Write(buffer[:n])
			s.mu.Unlock()
			if err != nil {
				return // The terminal or the process has gone away.
			}
		}
	}()
	return s
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func TestThePluginAsAProcess(t *testing.T) {
	spec := refcluster.Default(time.Now()).Resize(400, 0.5)
	cp := controlplane.ForTest(t, controlplane.Options{
		BeforeAPIServer: func(ctx context.Context, etcd string) error { return refcluster.Load(ctx, etcd, spec) },
	})
	api := calico.API{GroupVersion: calico.GroupCRD}
	if err := controlplane.InstallCRDs(t.Context(), cp.Config(), api); err != nil {
		t.Fatal(err)
	}
	server, err := effect.NewAPI(cp.Config(), api)
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "kubectl-ipam_guard")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	plugin := func(args ...string) *process {
		p := &process{Cmd: exec.CommandContext(t.Context(), binary, append(args, "--kubeconfig="+cp.Kubeconfig())...)}
		p.Stderr = &p.errOut
		return p
	}
	handles := func() map[string]bool {
		page, _, err := server.ListHandles(t.Context(), 0, "")
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, h := range page {
			names[h.Name] = true
		}
		return names
	}
	live := map[string]bool{}
	for h := range spec.LiveHandles() {
		live[h.Name] = true
	}
	// sound checks that what is gone was recorded and was no live handle.
	sound := func(t *testing.T, before map[string]bool, file string) (deleted int) {
		t.Helper()
		recorded := map[string]bool{}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := audit.Read(f, func(r audit.Record) error {
			recorded[r.Handle.Name] = true
			return nil
		}); err != nil {
			t.Error(err)
		}
		after := handles()
		for name := range before {
			if after[name] {
				continue
			}
			deleted++
			if live[name] || !recorded[name] {
				t.Errorf("%s is gone: live %v, recorded %v", name, live[name], recorded[name])
			}
		}
		return deleted
	}
	someGone := func(t *testing.T, before map[string]bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); len(handles()) > len(before)-5; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("nothing is swept")
			}
		}
	}

	t.Run("a reader that goes away does no harm", func(t *testing.T) {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		read.Close()
		for _, args := range [][]string{{"check"}, {"check", "-o", "json"}, {"check", "-o", "name"}, {"explain", "node/x", "node/y"}} {
			p := plugin(args...)
			p.Stdout = write
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			if code := p.code(t); args[0] == "check" && (code != 0 || p.errOut.Len() > 0) {
				t.Errorf("%q: code %d, %s", args, code, p.errOut.String())
			}
		}
		write.Close()
	})
	t.Run("colours and a bar are for terminals, and NO_COLOR is honoured", func(t *testing.T) {
		for _, tc := range []struct {
			env  string
			want bool
		}{{"TERM=xterm", true}, {"NO_COLOR=1", false}, {"TERM=dumb", false}} {
			p := plugin("check")
			p.Env = append(os.Environ(), "TERM=xterm", tc.env)
			p.Stderr = nil
			terminal, err := pty.Start(p.Cmd)
			if err != nil {
				t.Fatal(err)
			}
			seen := watch(terminal)
			code := p.code(t)
			<-seen.done
			terminal.Close()
			if got := strings.Contains(seen.String(), "\x1b["); code != 0 || got != tc.want {
				t.Errorf("%s: code %d, colours %v: %q", tc.env, code, got, seen.String())
			}
		}
		var out bytes.Buffer
		p := plugin("check")
		p.Stdout = &out
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		if code := p.code(t); code != 0 || strings.Contains(out.String(), "\x1b") {
			t.Errorf("off a terminal: code %d, %q", code, out.String())
		}
	})
	t.Run("Ctrl-C ends a sweep between two requests, and what it did is recorded", func(t *testing.T) {
		before := handles()
		file := filepath.Join(t.TempDir(), "audit.jsonl")
		p := plugin("sweep", "--yes", "--rate=40", "--audit-file="+file)
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		someGone(t, before)
		if err := p.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if code := p.code(t); code != 1 || !strings.Contains(p.errOut.String(), "interrupted") {
			t.Errorf("code %d, %s", code, p.errOut.String())
		}
		if n := sound(t, before, file); n == 0 || n == len(before)-len(live) {
			t.Errorf("%d of %d orphans were swept", n, len(before)-len(live))
		}
	})
	t.Run("a terminal that is closed ends a sweep between two requests", func(t *testing.T) {
		before := handles()
		file := filepath.Join(t.TempDir(), "audit.jsonl")
		p := plugin("sweep", "--yes", "--rate=20", "--audit-file="+file)
		p.Stderr = nil
		terminal, err := pty.Start(p.Cmd)
		if err != nil {
			t.Fatal(err)
		}
		seen := watch(terminal)
		someGone(t, before)
		for end := time.Now().Add(5 * time.Second); !strings.Contains(seen.String(), "\r\x1b[K["); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no bar is shown: %q", seen.String())
			}
		}
		terminal.Close()
		if code := p.code(t); code != 1 {
			t.Errorf("code %d", code)
		}
		if n := sound(t, before, file); n == 0 || n == len(before)-len(live) {
			t.Errorf("%d of %d orphans were swept", n, len(before)-len(live))
		}
	})
	t.Run("another sweep goes on from there", func(t *testing.T) {
		before := handles()
		file := filepath.Join(t.TempDir(), "audit.jsonl")
		p := plugin("sweep", "--yes", "--rate=0", "--audit-file="+file)
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		if code := p.code(t); code != 0 {
			t.Errorf("code %d, %s", code, p.errOut.String())
		}
		if n := sound(t, before, file); n != len(before)-len(live) {
			t.Errorf("%d of %d orphans were swept", n, len(before)-len(live))
		}
	})
	t.Run("shells complete commands, formats and names", func(t *testing.T) {
		node := ""
		for n := range spec.NodeObjects() {
			node = n.Name
		}
		for _, tc := range []struct{ args, want []string }{
			{[]string{""}, []string{"check", "explain", "sweep", "restore", "uninstall", "status"}},
			{[]string{"check", "-o", ""}, []string{"table", "wide", "html", "json", "yaml", "name", "jsonpath"}},
			{[]string{"check", "--fail-on", ""}, []string{"orphaned", "missing"}},
			{[]string{"sweep", "--pool", ""}, []string{spec.Pools()[0].Name}},
			{[]string{"sweep", "--node", ""}, []string{node}},
			{[]string{"sweep", "--selector", "reason="}, []string{"reason=PodGone", "reason=NodeGone"}},
		} {
			args := append([]string{"__complete", "--kubeconfig=" + cp.Kubeconfig()}, tc.args...)
			out, err := exec.CommandContext(t.Context(), binary, args...).Output()
			if err != nil {
				t.Errorf("%q: %v", tc.args, err)
			}
			for _, want := range tc.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("%q: no %s in %q", tc.args, want, out)
				}
			}
		}
	})
}
