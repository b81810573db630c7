package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/controlplane"
)

// manager is the real manager, run as a child.
type manager struct {
	process *controlplane.Component
	metrics string
}

const (
	managerStart = time.Minute
	managerStop  = 20 * time.Second
	scrapeLimit  = 5 * time.Second
)

func newManager(path, dir, kubeconfig string, rate float64) (*manager, error) {
	metrics, err := freeAddress()
	if err != nil {
		return nil, err
	}
	health, err := freeAddress()
	if err != nil {
		return nil, err
	}
	process := controlplane.NewComponent("manager", path, filepath.Join(dir, "manager.log"), "http://"+health+"/readyz",
		"--kubeconfig="+kubeconfig,
		fmt.Sprintf("--rate=%v", rate),
		"--interval=2s",
		"--leader-elect=false",
		"--webhook=false",
		"--guard=off",
		"--metrics-bind-address="+metrics,
		"--metrics-secure=false",
		"--health-probe-bind-address="+health,
		"--audit-file="+filepath.Join(dir, "audit.jsonl"),
	)
	process.Grace = managerStop
	return &manager{process: process, metrics: "http://" + metrics + "/metrics"}, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

func (m *manager) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, managerStart)
	defer cancel()
	return m.process.Start(ctx)
}

// stop ends the manager as a cluster would, and asks that it ends well.
func (m *manager) stop() error {
	if err := m.process.Stop(); err != nil {
		return err
	}
	if ended := m.process.Ended(); !errors.Is(ended, controlplane.ErrExitZero) {
		return fmt.Errorf("stop the manager: %w; the end of its log:\n%s", ended, m.process.LogTail())
	}
	return nil
}

// reading is what the manager's metrics say at one moment.
type reading struct {
	found, swept, conflicts, failures int
}

func (m *manager) read(ctx context.Context) (reading, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeLimit)
	defer cancel()
	metrics, err := scrape(ctx, http.DefaultTransport, m.metrics)
	if err != nil {
		return reading{}, err
	}
	return reading{
		found:     int(metrics.sum("ipam_guard_handles", "verdict", "Orphaned")),
		swept:     int(metrics.sum("ipam_guard_swept_total")),
		conflicts: int(metrics.sum("ipam_guard_sweep_conflicts_total")),
		failures:  int(metrics.sum("ipam_guard_sweep_failures_total")),
	}, nil
}

// errorsLogged counts the errors in the manager's log.
func (m *manager) errorsLogged() (int, error) {
	f, err := os.Open(m.process.LogFile())
	if err != nil {
		return 0, fmt.Errorf("read the manager's log: %w", err)
	}
	defer f.Close()
	n := 0
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct{ Level string }
		// A line that is no JSON was not logged: a panic, or a warning of the runtime.
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Level == "error" {
			n++
		}
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("read the manager's log: %w", err)
	}
	return n, nil
}
