package main

import (
	"context"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/rest"
)

// samples are scraped metrics by name.
type samples map[string]*dto.MetricFamily

func scrape(ctx context.Context, transport http.RoundTripper, url string) (samples, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read metrics: %s answers %s", url, resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read metrics of %s: %w", url, err)
	}
	return families, nil
}

// sum adds up the samples of one metric whose labels have these values, given
// as name and value in turn.
func (s samples) sum(name string, labels ...string) float64 {
	total := 0.0
	for _, m := range s[name].GetMetric() {
		if matches(m, labels) {
			total += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
		}
	}
	return total
}

func matches(m *dto.Metric, labels []string) bool {
	for i := 0; i < len(labels); i += 2 {
		if label(m, labels[i]) != labels[i+1] {
			return false
		}
	}
	return true
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// countRequests is how many requests for any resource the API server has
// answered, those that it makes itself included. A watch counts when it ends.
func countRequests(ctx context.Context, cfg *rest.Config) (int, error) {
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return 0, fmt.Errorf("count requests: %w", err)
	}
	metrics, err := scrape(ctx, transport, cfg.Host+"/metrics")
	if err != nil {
		return 0, err
	}
	const name = "apiserver_request_total"
	// Without a resource are health, discovery and metrics themselves.
	return int(metrics.sum(name) - metrics.sum(name, "resource", "")), nil
}
