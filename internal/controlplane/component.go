package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// Component is one process of a control plane.
type Component struct {
	name  string
	path  string
	args  []string
	log   string
	ready func(context.Context) error

	mu      sync.Mutex
	process *process
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
			return fmt.Errorf("start %s: it ended: %w; the end of its log:\n%s", c.name, p.err, c.tail())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s to be ready: %w; the end of its log:\n%s",
				c.name, errors.Join(ctx.Err(), notReady), c.tail())
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
	if err := c.process.end(signal); err != nil {
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

func (c *Component) tail() string {
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
				p.err = errors.New("exit status 0")
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
func (p *process) end(signal syscall.Signal) error {
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(stopGrace):
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}
