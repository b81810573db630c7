// Package pace limits how fast effects reach the API server, and slows down
// when the server is in trouble.
package pace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
)

const (
	// burst lets workers start together; it is small beside any second's quota.
	burst = 8
	// unlimited is the ceiling when no limit is asked for: no API server is as fast.
	unlimited = 1e6
	// floorShare of the ceiling is the slowest that trouble makes it.
	floorShare = 1.0 / 64
	// restShare of the ceiling is won back each second without trouble.
	restShare = 1.0 / 32
	// calm is the least time between two halvings: one burst of errors is one event.
	calm = time.Second
	// slowFactor times the usual latency counts as rising, above slowLeast: a
	// server that is merely busy answers sooner.
	slowFactor = 4
	slowLeast  = time.Second
	// Weights of a new latency in the recent and the usual average.
	recentWeight, usualWeight = 0.1, 0.002
)

// Pace is an adaptive rate limit: it halves on 429, timeouts, server errors
// and rising latency, recovers slowly, and honours Retry-After. It is safe for
// concurrent use.
type Pace struct {
	clock clock.Clock

	mu            sync.Mutex
	limiter       *rate.Limiter
	ceiling       float64
	heldUntil     time.Time
	lastHalving   time.Time
	lastRecovery  time.Time
	recent, usual float64 // seconds
	finished      float64 // requests finished since windowStart
	windowStart   time.Time
	measured      float64 // requests a second in the last full window
}

// New returns a pace of perSecond effects a second; zero means no limit but
// the server's own complaints.
func New(perSecond float64, c clock.Clock) (*Pace, error) {
	if perSecond < 0 || math.IsNaN(perSecond) || math.IsInf(perSecond, 0) {
		return nil, fmt.Errorf("rate must be zero (no limit) or a positive number of effects a second, got %v", perSecond)
	}
	ceiling := perSecond
	if ceiling == 0 {
		ceiling = unlimited
	}
	now := c.Now()
	return &Pace{
		clock:        c,
		limiter:      rate.NewLimiter(rate.Limit(ceiling), burst),
		ceiling:      ceiling,
		lastRecovery: now,
		windowStart:  now,
	}, nil
}

// Wait blocks until the next effect may go out, or ctx ends.
func (p *Pace) Wait(ctx context.Context) error {
	for {
		delay := p.reserve()
		if delay <= 0 {
			return ctx.Err()
		}
		timer := p.clock.NewTimer(delay)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C():
		}
		// Retry-After may have come in while this one slept.
		if p.held() <= 0 {
			return nil
		}
	}
}

func (p *Pace) reserve() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	p.recover(now)
	if hold := p.heldUntil.Sub(now); hold > 0 {
		return hold
	}
	return p.limiter.ReserveN(now, 1).DelayFrom(now)
}

func (p *Pace) held() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heldUntil.Sub(p.clock.Now())
}

// Observe tells how a request went: how long it took, and its error.
func (p *Pace) Observe(took time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	p.measure(now)
	if trouble(err) {
		if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
			if until := now.Add(time.Duration(seconds) * time.Second); until.After(p.heldUntil) {
				p.heldUntil = until
			}
		}
		p.halve(now)
		return
	}
	p.latency(now, took.Seconds())
}

// Rate is the present limit in effects a second.
func (p *Pace) Rate() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return float64(p.limiter.Limit())
}

func trouble(err error) bool {
	return err != nil && (apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTimeout(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) ||
		errors.Is(err, context.DeadlineExceeded))
}

func (p *Pace) latency(now time.Time, seconds float64) {
	if p.usual == 0 {
		p.usual, p.recent = seconds, seconds
		return
	}
	p.recent += recentWeight * (seconds - p.recent)
	p.usual += usualWeight * (seconds - p.usual)
	if p.recent > slowLeast.Seconds() && p.recent > slowFactor*p.usual {
		p.halve(now)
		p.recent = p.usual
	}
}

// measure keeps the true rate, so that halving "no limit" halves what was
// really sent.
func (p *Pace) measure(now time.Time) {
	p.finished++
	if span := now.Sub(p.windowStart); span >= calm {
		p.measured = p.finished / span.Seconds()
		p.finished, p.windowStart = 0, now
	}
}

func (p *Pace) halve(now time.Time) {
	if now.Sub(p.lastHalving) < calm {
		return
	}
	p.lastHalving, p.lastRecovery = now, now
	current := float64(p.limiter.Limit())
	if p.measured > 0 {
		current = min(current, p.measured)
	}
	p.limiter.SetLimitAt(now, rate.Limit(max(current/2, p.floor())))
}

func (p *Pace) floor() float64 { return min(p.ceiling*floorShare, 1) }

func (p *Pace) recover(now time.Time) {
	current := float64(p.limiter.Limit())
	if current >= p.ceiling {
		p.lastRecovery = now
		return
	}
	elapsed := now.Sub(p.lastRecovery)
	if elapsed < calm {
		return
	}
	p.lastRecovery = now
	step := restShare * elapsed.Seconds()
	gain := p.ceiling * step
	if p.ceiling == unlimited {
		// Without a ceiling of its own, growth is relative to what works.
		gain = max(current, 1) * 4 * step
		if p.measured > 0 && current > 4*p.measured {
			gain = p.ceiling
		}
	}
	p.limiter.SetLimitAt(now, rate.Limit(min(current+gain, p.ceiling)))
}
