// Package reference writes the parts of the documentation that code knows best.
package reference

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/yaml"

	"github.com/ipam-guard/ipam-guard/certs"
	"github.com/ipam-guard/ipam-guard/internal/config"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/metrics"
	"github.com/ipam-guard/ipam-guard/webhook"
)

// generated heads each page.
const generated = "<!-- Generated from code by `make docs`; edits here are lost. -->\n\n"

// Metric is one that the manager serves.
type Metric struct {
	Name, Type, Help string
	Labels           []string
}

// Metrics are all that the manager itself registers, by name.
func Metrics() ([]Metric, error) {
	var seen recorder
	if _, err := metrics.New(&seen, clock.RealClock{}, metrics.Sources{
		Rate:     func() float64 { return 0 },
		CacheLag: func() map[string]time.Duration { return nil },
	}); err != nil {
		return nil, err
	}
	if err := webhook.Register(ctrlwebhook.NewServer(ctrlwebhook.Options{}), webhook.Options{
		Inventory: inventory.New(clock.RealClock{}), WithoutGuard: true, Registerer: &seen, Log: logr.Discard(),
	}); err != nil {
		return nil, err
	}
	if _, err := certs.NewServer(certs.Options{Registerer: &seen, Log: logr.Discard(), Dir: "unread", Port: 1}); err != nil {
		return nil, err
	}
	slices.SortFunc(seen.metrics, func(a, b Metric) int { return strings.Compare(a.Name, b.Name) })
	return seen.metrics, seen.err
}

// recorder is a prometheus.Registerer that notes what it is given.
type recorder struct {
	metrics []Metric
	err     error
}

var description = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "(.*?)", (?:unit: "[^"]*", )?constLabels: \{.*\}, variableLabels: \{([^}]*)\}`)

// Register implements prometheus.Registerer.
func (r *recorder) Register(c prometheus.Collector) error {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		c.Describe(descriptions)
		close(descriptions)
	}()
	for d := range descriptions {
		parts := description.FindStringSubmatch(d.String())
		if parts == nil {
			r.err = fmt.Errorf("metric %s is not understood", d)
			continue
		}
		m := Metric{Name: parts[1], Type: typeOf(c), Help: strings.ReplaceAll(parts[2], `\"`, `"`)}
		if parts[3] != "" {
			m.Labels = strings.Split(parts[3], ",")
		}
		r.metrics = append(r.metrics, m)
	}
	return nil
}

// MustRegister implements prometheus.Registerer.
func (r *recorder) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		_ = r.Register(c)
	}
}

// Unregister implements prometheus.Registerer.
func (*recorder) Unregister(prometheus.Collector) bool { return false }

func typeOf(c prometheus.Collector) string {
	switch c.(type) {
	case *prometheus.CounterVec:
		return "counter"
	case *prometheus.HistogramVec, prometheus.Histogram:
		return "histogram"
	case prometheus.Gauge, *prometheus.GaugeVec:
		return "gauge"
	case prometheus.Counter:
		return "counter"
	default: // Collectors of our own tell what is now.
		return "gauge"
	}
}

// MetricsPage is docs/metrics.md.
func MetricsPage() (string, error) {
	all, err := Metrics()
	if err != nil {
		return "", err
	}
	var out strings.Builder
	out.WriteString("# Metrics\n\n" + generated +
		"Served on `/metrics` to who may read it, beside controller-runtime's own and Go's.\n" +
		"Only the replica that sweeps tells of handles; sum or `max` over replicas.\n\n" +
		"| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, m := range all {
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, quoted(m.Labels), m.Help)
	}
	return out.String(), nil
}

func quoted(words []string) string {
	var list []string
	for _, w := range words {
		list = append(list, "`"+w+"`")
	}
	return strings.Join(list, ", ")
}

// ConfigurationPage is docs/configuration.md.
func ConfigurationPage() (string, error) {
	c := config.Default()
	file, err := yaml.Marshal(c)
	if err != nil {
		return "", err
	}
	flags := pflag.NewFlagSet("manager", pflag.ContinueOnError)
	c.AddFlags(flags)
	fields := map[uintptr]string{}
	collect(reflect.ValueOf(&c).Elem(), "", fields)
	var out strings.Builder
	out.WriteString("# Configuration\n\n" + generated +
		"The manager reads a file, `--config`, and flags, which win over it. Unknown fields\n" +
		"and values out of range end it with one line that says what to change.\n\n" +
		"| field of the file | flag | default | meaning |\n|---|---|---|---|\n")
	flags.VisitAll(func(f *pflag.Flag) {
		at := target(f.Value)
		field, ok := fields[at]
		if !ok {
			err = fmt.Errorf("flag --%s sets no field of the configuration", f.Name)
		}
		delete(fields, at)
		fmt.Fprintf(&out, "| `%s` | `--%s` | %s | %s |\n", field, f.Name, orEmpty(f.DefValue), f.Usage)
	})
	for _, field := range fields {
		err = fmt.Errorf("no flag sets %s", field)
	}
	fmt.Fprintf(&out, "\nThe defaults as a file:\n\n```yaml\n%s```\n", file)
	return out.String(), err
}

// target is the address of what a flag sets.
func target(v pflag.Value) uintptr {
	at := reflect.ValueOf(v)
	if into := at.Elem(); into.Kind() == reflect.Struct {
		// Of a list, the flag's value holds the address.
		return into.FieldByName("value").Pointer()
	}
	return at.Pointer()
}

func orEmpty(value string) string {
	if value == "" {
		return "empty"
	}
	return "`" + value + "`"
}

// collect notes the path of each field that a flag could set, by its address.
func collect(v reflect.Value, path string, fields map[uintptr]string) {
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "": // The type of the file.
		case value.Kind() == reflect.Struct && value.NumField() == 1 && value.Type().Field(0).Type == reflect.TypeFor[time.Duration]():
			fields[value.Field(0).Addr().Pointer()] = path + name
		case value.Kind() == reflect.Struct:
			collect(value, path+name+".", fields)
		default:
			fields[value.Addr().Pointer()] = path + name
		}
	}
}
