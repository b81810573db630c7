// Package manager wires IPAM Guard's parts into one process.
package manager

import (
	"fmt"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ipam-guard/ipam-guard/internal/config"
	"github.com/ipam-guard/ipam-guard/internal/version"
)

// Command is the manager's command line.
func Command() *cobra.Command {
	cfg := config.Default()
	var configFile, kubeconfig, kubeContext string
	cmd := &cobra.Command{
		Use:           "manager",
		Short:         "Sweep leaked Calico IPAMHandles and serve IPAM Guard's admission webhooks",
		Args:          cobra.NoArgs,
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if configFile != "" {
				if err := cfg.Load(configFile, cmd.Flags()); err != nil {
					return err
				}
			}
			if err := cfg.Validate(); err != nil {
				return fmt.Errorf("invalid configuration: %w", err)
			}
			log, err := newLogger(cfg.LogFormat, cfg.LogLevel)
			if err != nil {
				return err
			}
			restConfig, err := clusterConfig(kubeconfig, kubeContext)
			if err != nil {
				return err
			}
			return Run(cmd.Context(), restConfig, cfg, log)
		},
	}
	cfg.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&configFile, "config", "", "versioned configuration file; flags override it")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file; without it KUBECONFIG, then the pod's own account")
	cmd.Flags().StringVar(&kubeContext, "context", "", "context of the kubeconfig")
	return cmd
}

// clusterConfig finds the cluster as kubectl does, and in a pod by its account.
func clusterConfig(kubeconfig, kubeContext string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: kubeContext}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no cluster to work on: %w", err)
	}
	cfg.UserAgent = "ipam-guard/" + version.String()
	return cfg, nil
}

// newLogger logs JSON for machines, or lines for people.
func newLogger(format, level string) (logr.Logger, error) {
	var zapLevel zapcore.Level
	if verbosity, ok := verbosityOf(level); ok {
		zapLevel = zapcore.Level(-verbosity)
	} else if err := zapLevel.UnmarshalText([]byte(level)); err != nil {
		return logr.Logger{}, fmt.Errorf("logLevel (--log-level) is %q: set it to error, info, debug or a verbosity number", level)
	}
	zapConfig := zap.NewProductionConfig()
	zapConfig.Sampling = nil // Every effect's record is a line of its own.
	zapConfig.EncoderConfig.TimeKey = "ts"
	zapConfig.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	if format == "console" {
		zapConfig = zap.NewDevelopmentConfig()
		zapConfig.DisableStacktrace = true
	}
	zapConfig.Level = zap.NewAtomicLevelAt(zapLevel)
	logger, err := zapConfig.Build()
	if err != nil {
		return logr.Logger{}, fmt.Errorf("start logging: %w", err)
	}
	return zapr.NewLogger(logger), nil
}

// newAuditLogger logs the records of effects, which are kept whatever the log's
// format and level.
func newAuditLogger() (logr.Logger, error) {
	logger, err := newLogger("json", "info")
	return logger.WithName("audit"), err
}

func verbosityOf(level string) (int8, bool) {
	var n int8
	if _, err := fmt.Sscanf(level, "%d", &n); err != nil || n < 0 {
		return 0, false
	}
	return n, true
}
