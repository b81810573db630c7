package manager_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
)

// spans collects what a manager traces.
type spans struct {
	collector.UnimplementedTraceServiceServer

	mu       sync.Mutex
	services []string
	// parents are the names of spans, by ID; children those of a parent's ID.
	names    map[string]string
	children map[string][]string
}

func (s *spans) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		for _, a := range resource.Resource.Attributes {
			if a.Key == "service.name" {
				s.services = append(s.services, a.Value.GetStringValue())
			}
		}
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				s.names[string(span.SpanId)] = span.Name
				s.children[string(span.ParentSpanId)] = append(s.children[string(span.ParentSpanId)], span.Name)
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// under are the spans below those of a name.
func (s *spans) under(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []string
	for id, n := range s.names {
		if n == name {
			found = append(found, s.children[id]...)
		}
	}
	return found
}

func TestASweepIsTraced(t *testing.T) {
	manager := build(t)
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	received := &spans{names: map[string]string{}, children: map[string][]string{}}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, received)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(l); err != nil {
			t.Errorf("collector: %v", err)
		}
	})
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})

	spec := refcluster.Default(time.Now()).Resize(60, 0.5)
	cp := controlplane.ForTest(t, controlplane.Options{
		BeforeAPIServer: func(ctx context.Context, etcd string) error { return refcluster.Load(ctx, etcd, spec) },
	})
	must(t, controlplane.InstallCRDs(t.Context(), cp.Config(), older))
	process := start(t, cp, manager, "--rate=0", "--tracing-endpoint="+l.Addr().String(), "--tracing-ratio=1")
	for end := time.Now().Add(time.Minute); len(handlesOf(t, cp.Config())) > spec.Live(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("nothing is swept:\n%s", process.LogTail())
		}
	}
	// The last spans go with the end of the process.
	must(t, process.Stop())
	requests := received.under("sweep pass")
	deletes := 0
	for _, name := range requests {
		if strings.Contains(name, "DELETE") {
			deletes++
		}
	}
	if deletes != spec.Orphans {
		t.Errorf("the passes' spans hold %d deletes, want %d: %q", deletes, spec.Orphans, requests)
	}
	received.mu.Lock()
	defer received.mu.Unlock()
	if !slices.Contains(received.services, "ipam-guard") {
		t.Errorf("the services are %q", received.services)
	}
}
