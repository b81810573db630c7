package main

import "time"

// window is how far back the shown rate looks.
const window = 5 * time.Second

// pace measures how fast a count grows. Its zero value has seen nothing.
type pace struct{ samples []sample }

type sample struct {
	at    time.Time
	count int
}

func (p *pace) add(at time.Time, count int) {
	p.samples = append(p.samples, sample{at, count})
	for len(p.samples) > 2 && at.Sub(p.samples[1].at) >= window {
		p.samples = p.samples[1:]
	}
}

// rate is in counts a second.
func (p *pace) rate() float64 {
	if len(p.samples) < 2 {
		return 0
	}
	first, last := p.samples[0], p.samples[len(p.samples)-1]
	return float64(last.count-first.count) / last.at.Sub(first.at).Seconds()
}
