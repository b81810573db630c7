package assets

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

// reportEvery keeps a build from looking like a hang.
const reportEvery = 5 * time.Second

// progress counts the packages that "go build -v" names, one a line.
type progress struct {
	log   io.Writer
	what  string
	start time.Time
	quit  chan struct{}
	ended sync.WaitGroup

	mu       sync.Mutex
	compiled int
}

func report(log io.Writer, what string) *progress {
	p := &progress{log: log, what: what, start: time.Now(), quit: make(chan struct{})}
	p.ended.Go(func() {
		ticker := time.NewTicker(reportEvery)
		defer ticker.Stop()
		for {
			select {
			case <-p.quit:
				return
			case <-ticker.C:
				p.mu.Lock()
				n := p.compiled
				p.mu.Unlock()
				p.printf("%s: %s, %d packages compiled", what, p.elapsed(), n)
			}
		}
	})
	return p
}

// Write implements io.Writer.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.compiled += bytes.Count(b, []byte("\n"))
	return len(b), nil
}

func (p *progress) done(err error) {
	close(p.quit)
	p.ended.Wait()
	if err != nil {
		p.printf("%s: failed after %s", p.what, p.elapsed())
		return
	}
	if elapsed := p.elapsed(); elapsed > 0 { // An up-to-date one is no news.
		p.printf("%s: done in %s", p.what, elapsed)
	}
}

func (p *progress) elapsed() time.Duration { return time.Since(p.start).Round(time.Second) }

func (p *progress) printf(format string, args ...any) {
	// Progress is for people; a closed terminal must not fail a build.
	_, _ = fmt.Fprintf(p.log, format+"\n", args...)
}
