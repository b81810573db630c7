package pace

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
)

func newPace(t *testing.T, perSecond float64) *Pace {
	t.Helper()
	p, err := New(perSecond, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// spend waits for n effects and tells how long that took.
func spend(t *testing.T, p *Pace, n int) time.Duration {
	t.Helper()
	start := time.Now()
	for range n {
		if err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return time.Since(start)
}

func TestPaceKeepsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if took := spend(t, newPace(t, 100), burst+500); took < 4900*time.Millisecond || took > 5100*time.Millisecond {
			t.Errorf("500 effects beyond the burst at 100/s took %s, want 5 s", took)
		}
	})
}

func TestPaceWithoutALimitDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if took := spend(t, newPace(t, 0), 10_000); took > 50*time.Millisecond {
			t.Errorf("10,000 effects without a limit took %s", took)
		}
	})
}

func TestPaceRefusesARateThatIsNone(t *testing.T) {
	if _, err := New(-1, clock.RealClock{}); err == nil {
		t.Error("a rate of -1 was accepted")
	}
}

func TestPaceHalves(t *testing.T) {
	handles := schema.GroupResource{Resource: "ipamhandles"}
	for name, err := range map[string]error{
		"on 429":                        apierrors.NewTooManyRequests("slow down", 0),
		"on a server timeout":           apierrors.NewServerTimeout(handles, "delete", 0),
		"on a server error":             apierrors.NewInternalError(errors.New("etcd leader changed")),
		"on an unavailable server":      apierrors.NewServiceUnavailable("shutting down"),
		"when a request's time runs up": context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPace(t, 100)
				time.Sleep(2 * calm)
				p.Observe(time.Millisecond, err)
				if got := p.Rate(); got > 50 {
					t.Errorf("rate is %v after trouble, want 50 or less", got)
				}
			})
		})
	}
}

func TestPaceHalvesOnceForABurstOfTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(t, 100)
		time.Sleep(2 * calm)
		p.Observe(time.Millisecond, nil)
		for range 32 {
			p.Observe(time.Millisecond, apierrors.NewTooManyRequests("slow down", 0))
		}
		low := p.Rate()
		p.Observe(time.Millisecond, apierrors.NewTooManyRequests("slow down", 0))
		if p.Rate() != low {
			t.Errorf("33 refusals at once halved the rate more than once: %v, then %v", low, p.Rate())
		}
	})
}

func TestPaceDoesNotSlowDownForConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(t, 100)
		time.Sleep(2 * calm)
		p.Observe(time.Millisecond, apierrors.NewConflict(schema.GroupResource{}, "h", nil))
		p.Observe(time.Millisecond, apierrors.NewNotFound(schema.GroupResource{}, "h"))
		if got := p.Rate(); got != 100 {
			t.Errorf("rate is %v, want 100", got)
		}
	})
}

func TestPaceHalvesWhenLatencyRises(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(t, 100)
		for range 500 {
			p.Observe(5*time.Millisecond, nil)
		}
		time.Sleep(2 * calm)
		for range 20 {
			p.Observe(2*time.Second, nil)
		}
		if got := p.Rate(); got >= 100 {
			t.Errorf("rate is still %v after latency rose from 5 ms to 2 s", got)
		}
	})
}

func TestPaceRecoversSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(t, 100)
		time.Sleep(2 * calm)
		p.Observe(time.Millisecond, apierrors.NewTooManyRequests("slow down", 0))
		time.Sleep(2 * calm)
		spend(t, p, 1)
		if got := p.Rate(); got > 60 {
			t.Errorf("rate is back at %v after 2 s", got)
		}
		for range 120 {
			time.Sleep(calm)
			spend(t, p, 1)
		}
		if got := p.Rate(); got != 100 {
			t.Errorf("rate is %v after two minutes without trouble, want 100", got)
		}
	})
}

func TestPaceHonoursRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(t, 0)
		p.Observe(time.Millisecond, apierrors.NewTooManyRequests("slow down", 7))
		if took := spend(t, p, 1); took < 7*time.Second {
			t.Errorf("the next effect went out after %s, want 7 s", took)
		}
	})
}

func TestPaceStopsWaitingWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(t, 1)
		p.Observe(time.Millisecond, apierrors.NewTooManyRequests("slow down", 3600))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the context's error", err)
		}
	})
}
