package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

const header = "apiVersion: config.ipam-guard.io/v1\nkind: ManagerConfig\n"

func load(t *testing.T, file string, args ...string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Default()
	fs := pflag.NewFlagSet("manager", pflag.ContinueOnError)
	cfg.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	err := cfg.Load(path, fs)
	return cfg, err
}

func TestFlagsOverrideTheFileAndTheFileTheDefaults(t *testing.T) {
	cfg, err := load(t, header+"sweep:\n  grace: 20m\n  rate: 50\n", "--rate=7")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Sweep.Grace.Duration != 20*time.Minute || cfg.Sweep.Rate != 7 || cfg.Sweep.Workers != 32 || !cfg.Sweep.Enabled {
		t.Errorf("got %+v", cfg.Sweep)
	}
}

func TestAListOfAFlagOverridesTheFiles(t *testing.T) {
	file := header + "repair: [skewed, stuck]\n"
	for name, tc := range map[string]struct{ args, want []string }{
		"without the flag the file's list counts": {nil, []string{"skewed", "stuck"}},
		"the flag's list replaces the file's":     {[]string{"--repair=missing,stuck"}, []string{"missing", "stuck"}},
		"an empty flag repairs nothing":           {[]string{"--repair="}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := load(t, file, tc.args...)
			if err != nil || !slices.Equal(cfg.Repair, tc.want) {
				t.Errorf("got %q, %v, want %q", cfg.Repair, err, tc.want)
			}
			if err := cfg.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLoadNamesWhatIsWrong(t *testing.T) {
	for name, tc := range map[string]struct{ file, want string }{
		"an unknown field":     {header + "sweep:\n  grase: 20m\n", "grase"},
		"an unknown section":   {header + "swept: {}\n", "swept"},
		"a value of no form":   {header + "sweep:\n  grace: soon\n", "soon"},
		"another kind":         {"apiVersion: v1\nkind: ConfigMap\n", "ManagerConfig"},
		"an unknown version":   {"apiVersion: config.ipam-guard.io/v9\nkind: ManagerConfig\n", "v9"},
		"something not YAML":   {"\t{", "YAML"},
		"a duplicate of a key": {header + "logLevel: info\nlogLevel: debug\n", "logLevel"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := load(t, tc.file); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error that names %q", err, tc.want)
			}
		})
	}
}

func TestValidateSaysWhatToChange(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"a grace below CNI's deadline": {func(c *Config) { c.Sweep.Grace.Duration = 119 * time.Second }, "--grace"},
		"a negative rate":              {func(c *Config) { c.Sweep.Rate = -1 }, "--rate"},
		"no workers":                   {func(c *Config) { c.Sweep.Workers = 0 }, "--workers"},
		"a busy interval":              {func(c *Config) { c.Sweep.Interval.Duration = 0 }, "--interval"},
		"an unknown guard mode":        {func(c *Config) { c.Guard.Mode = "maybe" }, "--guard"},
		"a port that is none":          {func(c *Config) { c.Webhook.Port = 70000 }, "--webhook-port"},
		"a webhook without its folder": {func(c *Config) { c.Webhook.CertDir = "" }, "--webhook-cert-dir"},
		"a certificate of no place":    {func(c *Config) { c.Webhook.Certificate = "cert" }, "--webhook-certificate"},
		"an old TLS version":           {func(c *Config) { c.Webhook.TLSMinVersion = "1.1" }, "--tls-min-version"},
		"an unknown log format":        {func(c *Config) { c.LogFormat = "xml" }, "--log-format"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Default()
			tc.change(&cfg)
			err := cfg.Validate()
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line that names %s", err, tc.want)
			}
		})
	}
}

func TestTheDefaultsAreValid(t *testing.T) {
	cfg := Default()
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(header + "sweep:\n  grace: 20m\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg := Default()
		if cfg.decode(data) == nil && (cfg.APIVersion != APIVersion || cfg.Kind != Kind) {
			t.Errorf("accepted a file of another type: %q %q", cfg.APIVersion, cfg.Kind)
		}
	})
}
