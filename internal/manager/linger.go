package manager

import (
	"context"
	"net/http"
	"time"

	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

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

// parting closes a connection with the first answer on it after the process was
// told to end. The API server keeps its connections, and one that was closed
// just as it is used again is a failed request.
type parting struct {
	ctrlwebhook.Server
	told <-chan struct{}
}

// Register implements webhook.Server.
func (p parting) Register(path string, hook http.Handler) {
	p.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-p.told:
			w.Header().Set("Connection", "close")
		default:
		}
		hook.ServeHTTP(w, r)
	}))
}
