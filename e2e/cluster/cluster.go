//go:build linux

// Package cluster brings up a real cluster of one node on this machine: its
// pods are processes in containers, and Services, mounts and drains are
// Kubernetes' own.
package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ipam-guard/ipam-guard/e2e/cluster/image"
	"github.com/ipam-guard/ipam-guard/e2e/cluster/node"
	"github.com/ipam-guard/ipam-guard/e2e/cluster/preflight"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/controlplane/assets"
)

const (
	startTimeout = 5 * time.Minute
	stopGrace    = 30 * time.Second
)

// Options say how to start a cluster.
type Options struct {
	// Dir holds all that the cluster keeps. It must not exist, or be empty.
	Dir string
	// Detach lets the cluster outlive the process that starts it.
	Detach bool
	// Log gets the progress of builds; nil discards it.
	Log io.Writer
}

// Cluster is a running cluster.
type Cluster struct {
	layout  node.Layout
	kubectl string
	// pid is the first process's, and began when the kernel says it began.
	pid   int
	began string
	// ended is closed when the cluster's first process has ended; nil when it
	// is no child of this process.
	ended chan struct{}
}

// Start builds what is needed, starts a cluster and returns when its node is
// ready.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if err := preflight.Check(); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{layout: node.Layout(dir)}
	paths, err := assets.Ensure(ctx, o.Log, append([]string{assets.Kubectl}, node.Needs...)...)
	if err != nil {
		return nil, err
	}
	c.kubectl = paths[assets.Kubectl]
	if err := c.prepare(ctx, o.Log); err != nil {
		return nil, err
	}
	if err := c.launch(o.Detach); err != nil {
		return nil, err
	}
	if err := c.waitReady(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// commands are built for the node out of this module; those with an image run
// in pods.
var commands = map[string]string{
	"node":         "",
	"calico-ipam":  "",
	"pause":        node.PauseImage,
	"cert-manager": certManagerImage,
}

// prepare makes folders, binaries and images.
func (c *Cluster) prepare(ctx context.Context, log io.Writer) error {
	for _, dir := range []string{c.layout.Binaries(), c.layout.Images(), c.layout.Logs(), filepath.Join(c.Dir(), "lib")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the cluster's folder: %w", err)
		}
	}
	root, err := assets.Root()
	if err != nil {
		return err
	}
	module := filepath.Join(root, "e2e")
	images := map[string]string{"manager": ManagerImage}
	for name, image := range commands {
		fmt.Fprintln(log, "build", name)
		if err := c.build(ctx, module, name, "./cluster/cmd/"+name); err != nil {
			return err
		}
		if image != "" {
			images[name] = image
		}
	}
	fmt.Fprintln(log, "build manager")
	if err := c.build(ctx, root, "manager", "./cmd/manager"); err != nil {
		return err
	}
	for name, ref := range images {
		if err := image.Write(filepath.Join(c.layout.Images(), name+".tar"), ref, filepath.Join(c.layout.Binaries(), name)); err != nil {
			return err
		}
	}
	return nil
}

// build makes a static binary, as the Dockerfile does.
func (c *Cluster) build(ctx context.Context, dir, name, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(c.layout.Binaries(), name), pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return nil
}

// launch starts the cluster's first process in namespaces of its own. What it
// inherits is a socket that listens on this side's loopback.
func (c *Cluster) launch(detach bool) error {
	root, err := assets.Root()
	if err != nil {
		return err
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return fmt.Errorf("listen for the API server: %w", err)
	}
	defer l.Close()
	socket, err := l.File()
	if err != nil {
		return fmt.Errorf("listen for the API server: %w", err)
	}
	defer socket.Close()
	log, err := os.Create(c.nodeLog())
	if err != nil {
		return fmt.Errorf("log of the node: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(c.layout.Binaries(), "node"), c.Dir())
	cmd.Dir = root
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		Setsid:     true,
	}
	if !detach {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	started := make(chan error)
	c.ended = make(chan struct{})
	go func() {
		// The kernel ties a child's death signal to the thread that started it.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(c.ended)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start the node: %w", err)
	}
	c.pid = cmd.Process.Pid
	_, c.began = stat(c.pid)
	for name, value := range map[string]string{"pid": fmt.Sprint(c.pid, " ", c.began), "address": l.Addr().String()} {
		if err := os.WriteFile(filepath.Join(c.Dir(), name), []byte(value), 0o600); err != nil {
			return errors.Join(err, c.Stop())
		}
	}
	return nil
}

func (c *Cluster) nodeLog() string { return filepath.Join(c.layout.Logs(), "node.log") }

func (c *Cluster) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the node: %w", ctx.Err())
		case <-c.ended:
			log, err := os.ReadFile(c.nodeLog())
			return errors.Join(fmt.Errorf("the node ended:\n%s", log), err)
		case <-time.After(100 * time.Millisecond):
		}
		if _, err := os.Stat(c.layout.Ready()); err == nil {
			return c.writeKubeconfig()
		}
	}
}

// writeKubeconfig is for use outside.
func (c *Cluster) writeKubeconfig() error {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.layout.AdminKubeconfig())
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	address, err := os.ReadFile(filepath.Join(c.Dir(), "address"))
	if err != nil {
		return err
	}
	cfg.Host = "https://" + string(address)
	return controlplane.WriteKubeconfig(c.Kubeconfig(), cfg)
}

// Dir is the cluster's folder.
func (c *Cluster) Dir() string { return string(c.layout) }

// Kubeconfig is the path of an administrator's kubeconfig file.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Dir(), "kubeconfig") }

// Config is an administrator's configuration, without throttling.
func (c *Cluster) Config() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	cfg.QPS = -1
	return cfg, nil
}

// Dial connects to an address inside: a pod's, a Service's, the node's.
func (c *Cluster) Dial(ctx context.Context, _, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.layout.DialSocket())
	if err != nil {
		return nil, fmt.Errorf("dial into the cluster: %w", err)
	}
	if _, err := fmt.Fprintln(conn, address); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// One byte at a time, lest a byte of what follows be taken.
	answer, err := bufio.NewReaderSize(oneByte{conn}, 16).ReadString('\n')
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if answer = strings.TrimSpace(answer); answer != "ok" {
		return nil, errors.Join(errors.New(answer), conn.Close())
	}
	return conn, nil
}

type oneByte struct{ io.Reader }

func (r oneByte) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(1, len(p))]) }

// Find returns the cluster that runs in a folder, nil when there is none.
func Find(dir string) (*Cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{layout: node.Layout(dir)}
	text, err := os.ReadFile(filepath.Join(dir, "pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Sscan(string(text), &c.pid, &c.began); err != nil {
		return nil, fmt.Errorf("process ID of the cluster: %w", err)
	}
	return c, nil
}

// Running tells whether the cluster's first process, still the one that was started, or any
// other in its namespaces is there: it becomes a zombie after all others.
func (c *Cluster) Running() bool {
	state, began := stat(c.pid)
	return began != "" && began == c.began && state != "Z"
}

// stat is a process's state, and when it began, which tells it from a later
// one with its ID.
func stat(pid int) (state, began string) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", ""
	}
	// The name before may hold anything, so what follows is counted.
	const afterName, beganAt = 2, 21
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) <= beganAt-afterName {
		return "", ""
	}
	return fields[0], fields[beganAt-afterName]
}

// Stop ends the cluster and all its pods, and removes all that they left but
// the folder.
func (c *Cluster) Stop() error {
	if c.Running() {
		if err := c.signal(syscall.SIGTERM); err != nil {
			return err
		}
		if !c.waitEnded(stopGrace) {
			if err := c.signal(syscall.SIGKILL); err != nil {
				return err
			}
			if !c.waitEnded(stopGrace) {
				return fmt.Errorf("process %d does not end", c.pid)
			}
		}
	}
	return node.RemoveCgroup(c.layout)
}

func (c *Cluster) signal(s syscall.Signal) error {
	if err := syscall.Kill(c.pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end process %d: %w", c.pid, err)
	}
	return nil
}

func (c *Cluster) waitEnded(within time.Duration) bool {
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if !c.Running() {
			return true
		}
	}
	return false
}
