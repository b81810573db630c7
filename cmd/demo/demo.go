package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/controlplane/assets"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
)

// demo is one run.
type demo struct {
	spec refcluster.Spec
	rate float64
	keep bool
	out  *printer
}

// maxRequests is the most requests that sweeping one handle may cost.
const maxRequests = 1.02

func (d *demo) run(ctx context.Context) (err error) {
	managerPath, err := assets.Command(ctx, d.out, "manager")
	if err != nil {
		return err
	}
	d.out.step("start the control plane with %s handles, %s leaked",
		comma(d.spec.Handles()), comma(d.spec.Orphans))
	cp, err := controlplane.Start(ctx, controlplane.Options{
		Log: d.out,
		BeforeAPIServer: func(ctx context.Context, etcd string) error {
			return refcluster.Load(ctx, etcd, d.spec)
		},
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			fmt.Fprintln(d.out, "logs are kept in", cp.KeepDir())
		}
		err = errors.Join(err, cp.Stop())
	}()
	if err := controlplane.InstallCRDs(ctx, cp.Config(), d.spec.API); err != nil {
		return err
	}
	before, err := census(ctx, cp.Config(), d.spec.API, cached)
	if err != nil {
		return err
	}
	d.out.step("%s handles have no matching IPs, %s have; start the manager",
		comma(len(before.unmatched())), comma(len(before.matched())))
	result, err := d.sweep(ctx, cp, managerPath, len(before.unmatched()))
	if err != nil {
		return err
	}
	d.out.step("count again")
	after, err := census(ctx, cp.Config(), d.spec.API, newest)
	if err != nil {
		return err
	}
	checks := judge(before, after, result)
	d.out.report(before, after, checks)
	if d.keep {
		fmt.Fprintf(d.out, "\nthe control plane runs until Ctrl-C; its kubeconfig is\n%s\n", cp.Kubeconfig())
		<-ctx.Done()
	}
	return failed(checks)
}

// outcome is what the sweep did, as manager and API server tell it.
type outcome struct {
	swept, conflicts, failures, errors int
	requests                           int
	took                               time.Duration
}

// sweep runs the manager until it has swept what it should.
func (d *demo) sweep(ctx context.Context, cp *controlplane.ControlPlane, path string, want int) (outcome, error) {
	requestsBefore, err := countRequests(ctx, cp.Config())
	if err != nil {
		return outcome{}, err
	}
	m, err := newManager(path, filepath.Dir(cp.Kubeconfig()), cp.Kubeconfig(), d.rate)
	if err != nil {
		return outcome{}, err
	}
	begin := time.Now()
	if err := m.start(ctx); err != nil {
		return outcome{}, err
	}
	defer func() { _ = m.process.Kill() }() // After Stop it has no effect.
	last, err := d.follow(ctx, m, want)
	if err != nil {
		return outcome{}, err
	}
	result := outcome{
		swept:     last.swept,
		conflicts: last.conflicts,
		failures:  last.failures,
		took:      time.Since(begin),
	}
	if err := m.stop(); err != nil {
		return outcome{}, err
	}
	requestsAfter, err := countRequests(ctx, cp.Config())
	if err != nil {
		return outcome{}, err
	}
	result.requests = requestsAfter - requestsBefore
	result.errors, err = m.errorsLogged()
	return result, err
}

const (
	followEvery = 500 * time.Millisecond
	// stalledAfter is longer than any pause that the manager makes by itself.
	stalledAfter = time.Minute
)

// follow shows the manager's progress until it has swept as many as wanted.
func (d *demo) follow(ctx context.Context, m *manager, want int) (reading, error) {
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	defer d.out.endProgress()
	var (
		pace  pace
		moved = time.Now()
		last  reading
	)
	for {
		select {
		case <-ctx.Done():
			return reading{}, ctx.Err()
		case <-ticker.C:
		}
		r, err := m.read(ctx)
		if err != nil {
			if ended := m.process.Ended(); ended != nil {
				return reading{}, fmt.Errorf("%w; the end of its log:\n%s", ended, m.process.LogTail())
			}
			return reading{}, err
		}
		if r.swept != last.swept {
			moved = time.Now()
		}
		last = r
		pace.add(time.Now(), r.swept)
		d.out.progress(r.found, r.swept, want, pace.rate())
		switch {
		case r.swept >= want:
			return last, nil
		case time.Since(moved) > stalledAfter:
			return reading{}, fmt.Errorf("the manager has swept nothing for %s, %d of %d so far; the end of its log:\n%s",
				stalledAfter, r.swept, want, m.process.LogTail())
		}
	}
}
