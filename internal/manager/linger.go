package manager

import (
	"context"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/config"
)

// lingering ends some time after ctx does, when admission is served: a pod is
// told to end while its Service still sends requests to it, and each that it
// refuses is a handle without a stamp.
func lingering(ctx context.Context, cfg config.Config) context.Context {
	if !cfg.Webhook.Enabled || cfg.Webhook.Linger.Duration == 0 {
		return ctx
	}
	later, end := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(cfg.Webhook.Linger.Duration, end) })
	return later
}
