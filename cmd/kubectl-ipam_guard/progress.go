package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/terminal"
)

// How often progress is shown: a bar on a terminal, a line elsewhere.
const (
	barEvery  = 100 * time.Millisecond
	lineEvery = 10 * time.Second
	barWidth  = 30
)

// progress shows how far work has come. It is safe for concurrent use, and
// ignores a terminal that has gone away.
type progress struct {
	out      io.Writer
	terminal bool
	clock    clock.PassiveClock
	noun     string

	mu                sync.Mutex
	total, done       int
	started, lastShow time.Time
}

func newProgress(out io.Writer, c clock.PassiveClock, noun string) *progress {
	return &progress{out: out, terminal: terminal.Is(out), clock: c, noun: noun}
}

// begin starts work on total things.
func (p *progress) begin(total int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total, p.started, p.lastShow = total, p.clock.Now(), p.clock.Now()
}

// step tells that one more is done.
func (p *progress) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	every := lineEvery
	if p.terminal {
		every = barEvery
	}
	if p.clock.Since(p.lastShow) >= every {
		p.show()
	}
}

// end shows the last state of a bar and leaves its line.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal && p.done > 0 {
		p.show()
		fmt.Fprintln(p.out)
	}
}

func (p *progress) show() {
	p.lastShow = p.clock.Now()
	rate := float64(p.done) / max(p.clock.Since(p.started).Seconds(), 0.001)
	left := time.Duration(float64(max(0, p.total-p.done)) / max(rate, 0.001) * float64(time.Second)).Round(time.Second)
	text := fmt.Sprintf("%d of %d %s, %.0f/s, %s left", p.done, p.total, p.noun, rate, left)
	if !p.terminal {
		fmt.Fprintln(p.out, text)
		return
	}
	filled := barWidth * min(p.done, p.total) / max(p.total, 1)
	fmt.Fprintf(p.out, "\r\x1b[K[%s%s] %s", strings.Repeat("#", filled), strings.Repeat("-", barWidth-filled), text)
}
