// Package config is the manager's configuration: a versioned file, and flags
// that override it.
package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// The file's type.
const (
	APIVersion = "config.ipam-guard.io/v1"
	Kind       = "ManagerConfig"
)

// Guard modes.
const (
	// GuardEnforce refuses a delete of a handle in use.
	GuardEnforce = "enforce"
	// GuardWarn lets it pass with a warning; the finalizer still holds it.
	GuardWarn = "warn"
	// GuardOff neither refuses, warns nor adds finalizers.
	GuardOff = "off"
)

// Config is the manager's configuration. Each field is a flag of the same
// name in kebab case.
type Config struct {
	metav1.TypeMeta `json:",inline"`

	Sweep Sweep `json:"sweep"`
	// Repair names divergences beyond orphans that are repaired: skewed,
	// missing, stuck.
	Repair         []string       `json:"repair"`
	Guard          Guard          `json:"guard"`
	Webhook        Webhook        `json:"webhook"`
	Metrics        Metrics        `json:"metrics"`
	Tracing        Tracing        `json:"tracing"`
	LeaderElection LeaderElection `json:"leaderElection"`
	// HealthAddress serves /healthz and /readyz.
	HealthAddress string `json:"healthAddress"`
	// AuditFile gets a JSON line for each effect; empty means the log.
	AuditFile string `json:"auditFile"`
	// LogFormat is json or console.
	LogFormat string `json:"logFormat"`
	// LogLevel is error, info, debug, or a verbosity number.
	LogLevel string `json:"logLevel"`
}

// Sweep configures the sweeper.
type Sweep struct {
	// Enabled false judges and reports, and never sweeps.
	Enabled bool `json:"enabled"`
	// DryRun judges as if it swept, and neither sweeps nor repairs. A finalizer
	// that admission gives is still taken off a handle that somebody deleted.
	DryRun bool `json:"dryRun"`
	// Grace is how long a handle must be unchanged before it may be swept.
	Grace metav1.Duration `json:"grace"`
	// Rate is the most deletes a second; 0 means no limit but the API server's.
	Rate float64 `json:"rate"`
	// Workers is how many deletes are under way at once.
	Workers int `json:"workers"`
	// Interval is the most time between two passes when something changed.
	Interval metav1.Duration `json:"interval"`
	// Unknown also sweeps handles whose owner cannot be told.
	Unknown bool `json:"unknown"`
}

// Guard configures the guard against raw deletes.
type Guard struct {
	// Mode is enforce, warn or off.
	Mode string `json:"mode"`
}

// Webhook configures admission.
type Webhook struct {
	// Enabled false serves no webhook: sweep only.
	Enabled bool   `json:"enabled"`
	Host    string `json:"host"`
	Port    int    `json:"port"`
	// CertDir holds tls.crt and tls.key.
	CertDir string `json:"certDir"`
	// Certificate names the cert-manager Certificate to watch, as
	// namespace/name; empty watches none.
	Certificate string `json:"certificate"`
	// TLSMinVersion is 1.3 or 1.2.
	TLSMinVersion string `json:"tlsMinVersion"`
	// Linger is how long everything goes on once the process is told to end:
	// a Service sends requests to a pod for some time after that.
	Linger metav1.Duration `json:"linger"`
}

// Metrics configures the metrics endpoint.
type Metrics struct {
	// Address serves /metrics; "0" serves none.
	Address string `json:"address"`
	// Secure asks callers for a token and checks that they may read /metrics.
	Secure bool `json:"secure"`
}

// Tracing configures OpenTelemetry.
type Tracing struct {
	// Endpoint is a collector's OTLP gRPC address, host:port, without TLS; empty
	// makes no spans.
	Endpoint string `json:"endpoint"`
	// Ratio is the share of traces that begin here and are kept, 0 to 1.
	Ratio float64 `json:"ratio"`
}

// LeaderElection configures who sweeps.
type LeaderElection struct {
	Enabled bool `json:"enabled"`
	// Namespace holds the lease; empty means the pod's own.
	Namespace string `json:"namespace"`
}

// maxLinger leaves time to end in within 30 s, a pod's usual grace period.
const maxLinger = 20 * time.Second

// Default is the configuration without file and flags.
func Default() Config {
	return Config{
		TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: Kind},
		Sweep: Sweep{
			Enabled:  true,
			Grace:    metav1.Duration{Duration: verdict.DefaultGrace},
			Rate:     100,
			Workers:  32,
			Interval: metav1.Duration{Duration: time.Minute},
		},
		Repair: []string{},
		Guard:  Guard{Mode: GuardEnforce},
		Webhook: Webhook{
			Enabled:       true,
			Port:          9443,
			CertDir:       "/var/run/ipam-guard/tls",
			TLSMinVersion: "1.3",
			Linger:        metav1.Duration{Duration: 5 * time.Second},
		},
		Metrics:        Metrics{Address: ":8443", Secure: true},
		Tracing:        Tracing{Ratio: 0.01},
		LeaderElection: LeaderElection{Enabled: true},
		HealthAddress:  ":8081",
		LogFormat:      "json",
		LogLevel:       "info",
	}
}

// divergences are what can be repaired.
func divergences() []string {
	var kinds []string
	for _, d := range verdict.Divergences() {
		kinds = append(kinds, string(d))
	}
	return kinds
}

// AddFlags binds flags to the configuration's fields.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.Sweep.Enabled, "sweep", c.Sweep.Enabled, "sweep orphaned handles")
	fs.BoolVar(&c.Sweep.DryRun, "dry-run", c.Sweep.DryRun, "judge and report, sweep and repair nothing")
	fs.DurationVar(&c.Sweep.Grace.Duration, "grace", c.Sweep.Grace.Duration,
		fmt.Sprintf("how long a handle must be unchanged before it may be swept, at least %s", verdict.MinGrace))
	fs.Float64Var(&c.Sweep.Rate, "rate", c.Sweep.Rate, "most deletes a second; 0 for no limit but the API server's")
	fs.IntVar(&c.Sweep.Workers, "workers", c.Sweep.Workers, "deletes under way at once")
	fs.DurationVar(&c.Sweep.Interval.Duration, "interval", c.Sweep.Interval.Duration, "most time between two passes when something changed")
	fs.BoolVar(&c.Sweep.Unknown, "sweep-unknown", c.Sweep.Unknown, "also sweep handles whose owner cannot be told")
	fs.StringSliceVar(&c.Repair, "repair", c.Repair, "divergences beyond orphans to repair: "+strings.Join(divergences(), ", ")+"; empty for none")
	fs.StringVar(&c.Guard.Mode, "guard", c.Guard.Mode, "what a raw delete of a handle in use meets: enforce, warn or off")
	fs.BoolVar(&c.Webhook.Enabled, "webhook", c.Webhook.Enabled, "serve admission")
	fs.StringVar(&c.Webhook.Host, "webhook-host", c.Webhook.Host, "address that admission listens on; empty for all")
	fs.IntVar(&c.Webhook.Port, "webhook-port", c.Webhook.Port, "port that admission listens on")
	fs.StringVar(&c.Webhook.CertDir, "webhook-cert-dir", c.Webhook.CertDir, "folder with tls.crt and tls.key")
	fs.StringVar(&c.Webhook.Certificate, "webhook-certificate", c.Webhook.Certificate, "cert-manager Certificate to watch, as namespace/name")
	fs.StringVar(&c.Webhook.TLSMinVersion, "tls-min-version", c.Webhook.TLSMinVersion, "least TLS version of admission and metrics: 1.3 or 1.2")
	fs.DurationVar(&c.Webhook.Linger.Duration, "webhook-linger", c.Webhook.Linger.Duration, "how long to go on when told to end, for requests that are still sent here")
	fs.StringVar(&c.Metrics.Address, "metrics-bind-address", c.Metrics.Address, `address of /metrics, "0" for none`)
	fs.BoolVar(&c.Metrics.Secure, "metrics-secure", c.Metrics.Secure, "serve metrics over TLS to authorised callers only")
	fs.StringVar(&c.Tracing.Endpoint, "tracing-endpoint", c.Tracing.Endpoint, "OTLP gRPC address of an OpenTelemetry collector, host:port, without TLS; empty for no spans")
	fs.Float64Var(&c.Tracing.Ratio, "tracing-ratio", c.Tracing.Ratio, "share of traces to keep of those that begin here, 0 to 1")
	fs.BoolVar(&c.LeaderElection.Enabled, "leader-elect", c.LeaderElection.Enabled, "elect the one replica that sweeps")
	fs.StringVar(&c.LeaderElection.Namespace, "leader-election-namespace", c.LeaderElection.Namespace, "namespace of the lease and of the status; empty for the pod's own")
	fs.StringVar(&c.HealthAddress, "health-probe-bind-address", c.HealthAddress, "address of /healthz and /readyz")
	fs.StringVar(&c.AuditFile, "audit-file", c.AuditFile, "file that gets a JSON line for each effect; empty for the log")
	fs.StringVar(&c.LogFormat, "log-format", c.LogFormat, "json or console")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "error, info, debug or a verbosity number")
}

// Load reads the file at path over c, then sets again the flags that fs was
// given, for they override the file. Unknown fields are errors that name them.
func (c *Config) Load(path string, fs *pflag.FlagSet) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	var again []func() error
	fs.Visit(func(f *pflag.Flag) {
		if list, ok := f.Value.(pflag.SliceValue); ok {
			given := slices.Clone(list.GetSlice())
			again = append(again, func() error { return list.Replace(given) })
			return
		}
		given := f.Value.String()
		again = append(again, func() error { return f.Value.Set(given) })
	})
	if err := c.decode(data); err != nil {
		return fmt.Errorf("configuration %s: %w", path, err)
	}
	for _, set := range again {
		if err := set(); err != nil {
			return fmt.Errorf("flags: %w", err)
		}
	}
	return nil
}

func (c *Config) decode(data []byte) error {
	var version metav1.TypeMeta
	if err := yaml.Unmarshal(data, &version); err != nil {
		return fmt.Errorf("no YAML: %w", err)
	}
	if version.APIVersion != APIVersion || version.Kind != Kind {
		return fmt.Errorf("want apiVersion %q and kind %q, got %q and %q", APIVersion, Kind, version.APIVersion, version.Kind)
	}
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

// Validate says in one line what to change.
func (c *Config) Validate() error {
	var wrong []string
	check := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	check(c.Sweep.Grace.Duration >= verdict.MinGrace,
		"sweep.grace (--grace) is %s: set it to %s or more, for Calico may still use a newer handle", c.Sweep.Grace.Duration, verdict.MinGrace)
	check(c.Sweep.Rate >= 0, "sweep.rate (--rate) is %v: set it to a positive number, or to 0 for no limit", c.Sweep.Rate)
	check(c.Sweep.Workers >= 1 && c.Sweep.Workers <= 1024, "sweep.workers (--workers) is %d: set it between 1 and 1024", c.Sweep.Workers)
	check(c.Sweep.Interval.Duration >= time.Second, "sweep.interval (--interval) is %s: set it to 1s or more", c.Sweep.Interval.Duration)
	for _, kind := range c.Repair {
		check(oneOf(kind, divergences()...), "repair (--repair) names %q: name one or more of %s", kind, strings.Join(divergences(), ", "))
	}
	check(oneOf(c.Guard.Mode, GuardEnforce, GuardWarn, GuardOff), "guard.mode (--guard) is %q: set it to enforce, warn or off", c.Guard.Mode)
	check(c.Webhook.Port > 0 && c.Webhook.Port < 1<<16, "webhook.port (--webhook-port) is %d: set it between 1 and 65535", c.Webhook.Port)
	check(!c.Webhook.Enabled || c.Webhook.CertDir != "", "webhook.certDir (--webhook-cert-dir) is empty: name the folder with tls.crt and tls.key, or turn the webhook off")
	check(c.Webhook.Certificate == "" || strings.Count(c.Webhook.Certificate, "/") == 1,
		"webhook.certificate (--webhook-certificate) is %q: write it as namespace/name", c.Webhook.Certificate)
	check(oneOf(c.Webhook.TLSMinVersion, "1.2", "1.3"), "webhook.tlsMinVersion (--tls-min-version) is %q: set it to 1.3 or 1.2", c.Webhook.TLSMinVersion)
	check(c.Webhook.Linger.Duration >= 0 && c.Webhook.Linger.Duration <= maxLinger,
		"webhook.linger (--webhook-linger) is %s: set it between 0s and %s, less than a pod's grace period", c.Webhook.Linger.Duration, maxLinger)
	check(c.Tracing.Ratio >= 0 && c.Tracing.Ratio <= 1, "tracing.ratio (--tracing-ratio) is %v: set it between 0 and 1", c.Tracing.Ratio)
	check(oneOf(c.LogFormat, "json", "console"), "logFormat (--log-format) is %q: set it to json or console", c.LogFormat)
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

func oneOf(s string, words ...string) bool {
	for _, w := range words {
		if s == w {
			return true
		}
	}
	return false
}
