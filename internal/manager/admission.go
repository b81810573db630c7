package manager

import (
	"crypto/tls"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/ipam-guard/ipam-guard/certs"
	"github.com/ipam-guard/ipam-guard/webhook"
)

// addAdmission serves the webhooks, on every replica.
func (p *parts) addAdmission() error {
	if !p.cfg.Webhook.Enabled {
		return nil
	}
	var versions tls.Config
	minTLS(p.cfg)(&versions)
	options := certs.Options{
		Host:       p.cfg.Webhook.Host,
		Port:       p.cfg.Webhook.Port,
		Dir:        p.cfg.Webhook.CertDir,
		MinVersion: versions.MinVersion,
		Config:     p.restConfig,
		Recorder:   p.mgr.GetEventRecorder(deploymentName),
		Registerer: ctrlmetrics.Registry,
		Log:        p.log.WithName("certificate"),
	}
	if namespace, name, ok := strings.Cut(p.cfg.Webhook.Certificate, "/"); ok {
		options.Certificate = types.NamespacedName{Namespace: namespace, Name: name}
	}
	if namespace := ownNamespace(p.cfg); namespace != "" {
		options.Regarding = &corev1.ObjectReference{
			APIVersion: "apps/v1", Kind: "Deployment", Namespace: namespace, Name: deploymentName,
		}
	}
	server, err := certs.NewServer(options)
	if err != nil {
		return err
	}
	var register ctrlwebhook.Server = server
	if p.cfg.Tracing.Endpoint != "" {
		register = tracedServer{server, p.spans}
	}
	err = webhook.Register(parting{register, p.told}, webhook.Options{
		Inventory:    p.inventory,
		Blocks:       p.effects,
		Mode:         webhook.Mode(p.cfg.Guard.Mode),
		WithoutGuard: !p.holds(),
		Clock:        p.clock,
		Registerer:   ctrlmetrics.Registry,
		Log:          p.log.WithName("admission"),
	})
	if err != nil {
		return err
	}
	return errors.Join(p.mgr.Add(server), p.mgr.AddReadyzCheck("certificate", server.Check()))
}
