package manager

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/ipam-guard/ipam-guard/internal/config"
	"github.com/ipam-guard/ipam-guard/internal/version"
)

// tracerName is what spans say who made them.
const tracerName = "github.com/ipam-guard/ipam-guard"

// flushTimeout bounds how long the end of the process waits for spans to go.
const flushTimeout = 3 * time.Second

// newTracing sends spans where the configuration says; without an endpoint it
// makes none.
func newTracing(ctx context.Context, cfg config.Tracing) (tracing.TracerProvider, error) {
	if cfg.Endpoint == "" {
		return tracing.NewNoopTracerProvider(), nil
	}
	perMillion := int32(cfg.Ratio * 1e6)
	provider, err := tracing.NewProvider(ctx, &tracingapi.TracingConfiguration{
		Endpoint: &cfg.Endpoint, SamplingRatePerMillion: &perMillion,
	}, nil, []resource.Option{resource.WithAttributes(
		semconv.ServiceName("ipam-guard"), semconv.ServiceVersion(version.String()), semconv.ServiceInstanceID(identity()),
	)})
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	return provider, nil
}

// flush sends what spans are left.
func flush(ctx context.Context, provider tracing.TracerProvider) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}

// tracedServer makes a span of each admission request, or goes on with the API
// server's.
type tracedServer struct {
	ctrlwebhook.Server
	provider tracing.TracerProvider
}

// Register implements webhook.Server.
func (s tracedServer) Register(path string, hook http.Handler) {
	s.Server.Register(path, tracing.WithTracing(hook, s.provider, "admission"))
}
