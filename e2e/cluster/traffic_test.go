//go:build linux

package cluster

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/calicoproto"
)

// traffic is what Calico does on a node all day: it makes handles and gives
// them back.
type traffic struct {
	stop    context.CancelFunc
	running sync.WaitGroup

	mu sync.Mutex
	// made, retried and unstamped count handles; slowest is the longest that a
	// creation took.
	made, retried, unstamped int
	slowest                  time.Duration
}

const (
	trafficWorkers = 2
	trafficPause   = 20 * time.Millisecond
)

func (h *harness) startTraffic(t *testing.T) *traffic {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &traffic{stop: stop}
	for range trafficWorkers {
		client, err := calicoproto.New(h.cfg, api)
		must(t, err)
		r.running.Go(func() {
			for ctx.Err() == nil {
				if !r.once(t, client) {
					return
				}
				time.Sleep(trafficPause)
			}
		})
	}
	return r
}

// once is a life of one handle. It tells whether to go on.
func (r *traffic) once(t *testing.T, client *calicoproto.Client) bool {
	writes := 0
	client.Before = func(_ context.Context, s calicoproto.Step) error {
		if s == calicoproto.WriteHandle {
			writes++
		}
		return nil
	}
	id := newID()
	began := time.Now()
	if err := client.Increment(t.Context(), id, block, 1); err != nil {
		t.Errorf("make a handle: %v", err)
		return false
	}
	took := time.Since(began)
	got, err := client.GetHandle(t.Context(), id)
	if err != nil {
		t.Errorf("read a handle: %v", err)
		return false
	}
	if _, err := client.Allocate(t.Context(), id, block, map[string]string{"namespace": "shop", "pod": "cart-0"}); err != nil {
		t.Errorf("assign an address: %v", err)
		return false
	}
	if err := client.Release(t.Context(), id); err != nil {
		t.Errorf("release an address: %v", err)
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made++
	r.slowest = max(r.slowest, took)
	if writes > 1 {
		r.retried++
	}
	if !stamped(got) {
		r.unstamped++
		t.Logf("handle made at %s is not stamped; its creation took %s", began.Format("15:04:05.000"), took)
	}
	return true
}

// end stops the traffic, which must have gone well.
func (r *traffic) end(t *testing.T) {
	t.Helper()
	r.stop()
	r.running.Wait()
	t.Logf("%d handles made, the slowest in %s", r.made, r.slowest.Round(time.Millisecond))
	if r.made == 0 || r.retried > 0 || r.unstamped > 0 {
		t.Errorf("%d of %d handles were made at a second try, %d were not stamped", r.retried, r.made, r.unstamped)
	}
}
