package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	readyPoll = 50 * time.Millisecond
	// stopGrace is short: an API server drains watches for longer than any
	// test wants to wait.
	stopGrace = 3 * time.Second
	logTail   = 4 << 10
)

// Component is one process of a control plane, or of what runs on it.
type Component struct {
	// Grace is how long Stop waits before it kills.
	Grace time.Duration

	name  string
	path  string
	args  []string
	log   string
	ready func(context.Context) error

	mu      sync.Mutex
	process *process
}

// NewComponent is a component that is not started yet. Its output is appended
// to logFile; it is ready once the URL answers 200.
func NewComponent(name, path, logFile, readyURL string, args ...string) *Component {
	return newComponent(name, path, logFile, probe(http.DefaultTransport, readyURL), args)
}

// ReadyWhen replaces the URL by a question of the caller's. It returns c.
func (c *Component) ReadyWhen(ready func(context.Context) error) *Component {
	c.ready = ready
	return c
}

func newComponent(name, path, logFile string, ready func(context.Context) error, args []string) *Component {
	return &Component{Grace: stopGrace, name: name, path: path, args: args, log: logFile, ready: ready}
}

// Start starts the component and returns when it is ready. Started again, it
// has the same flags, port, certificates and data. Its log goes on in the same
// file.
func (c *Component) Start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process.running() {
		return fmt.Errorf("start %s: it runs already", c.name)
	}
	p, err := launch(c.path, c.args, c.log)
	if err != nil {
		return fmt.Errorf("start %s: %w", c.name, err)
	}
	c.process = p
	var notReady error
	for {
		select {
		case <-p.done:
			return fmt.Errorf("start %s: it ended: %w; the end of its log:\n%s", c.name, p.err, c.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s to be ready: %w; the end of its log:\n%s",
				c.name, errors.Join(ctx.Err(), notReady), c.LogTail())
		case <-time.After(readyPoll):
		}
		if notReady = c.ready(ctx); notReady == nil {
			return nil
		}
	}
}

// Stop asks the component to end, and kills it when it takes too long. Not
// running is no error.
func (c *Component) Stop() error {
	return c.end(syscall.SIGTERM)
}

// Kill ends the component at once, as a crash would. Not running is no error.
func (c *Component) Kill() error {
	return c.end(syscall.SIGKILL)
}

func (c *Component) end(signal syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.process.running() {
		return nil
	}
	if err := c.process.end(signal, c.Grace); err != nil {
		return fmt.Errorf("stop %s: %w", c.name, err)
	}
	return nil
}

// PID is the process's ID, 0 when it does not run.
func (c *Component) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.process.running() {
		return 0
	}
	return c.process.cmd.Process.Pid
}

// LogFile is the path of the component's log.
func (c *Component) LogFile() string { return c.log }

// Ended is the error with which the last run of the component ended; nil while
// it runs, and before it is started.
func (c *Component) Ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil || c.process.running() {
		return nil
	}
	return fmt.Errorf("%s ended: %w", c.name, c.process.err)
}

// LogTail is the end of the component's log.
func (c *Component) LogTail() string {
	f, err := os.Open(c.log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, err = f.Seek(max(0, size-logTail), io.SeekStart)
		if err != nil {
			return err.Error()
		}
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(data))
}

// ErrExitZero is how a component ended that reported no failure.
var ErrExitZero = errors.New("exit status 0")

// process is one run of a component.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set before done is closed
}

func launch(path string, args []string, logFile string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttributes()
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel ties a child's death signal to the thread that started
		// it, so that thread must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			if p.err == nil {
				p.err = ErrExitZero
			}
		}
		p.err = errors.Join(p.err, log.Close())
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// end sends the signal, then waits for the process to be gone.
func (p *process) end(signal syscall.Signal, grace time.Duration) error {
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(grace):
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}
