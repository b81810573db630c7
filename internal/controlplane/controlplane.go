package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/controlplane/assets"
)

// Options say what to start. The zero value is etcd and kube-apiserver.
type Options struct {
	// Dir holds data, certificates and logs. Empty means a temporary folder,
	// which Stop removes; a folder that is named here is kept.
	Dir string
	// ControllerManager also starts kube-controller-manager. Without it nobody
	// makes ServiceAccounts, so that admission of pods does not ask for them.
	ControllerManager bool
	// BeforeAPIServer, if set, is called when etcd serves and the API server
	// does not yet: the moment to load data.
	BeforeAPIServer func(ctx context.Context, etcd string) error
	// Address is what the API server listens on; the zero value is 127.0.0.1.
	Address netip.Addr
	// ServiceCIDR is where ClusterIPs come from; the zero value is a /16 in
	// 127.0.0.0/8 that no other control plane on this machine uses. An address
	// in it can be bound by any process, so a Service needs no kube-proxy.
	ServiceCIDR netip.Prefix
	// EtcdFlags, APIServerFlags and ControllerManagerFlags come after our own
	// and so override them, but for flags that are lists, which grow.
	EtcdFlags, APIServerFlags, ControllerManagerFlags []string
	// Log gets the progress of builds; nil discards it.
	Log io.Writer
}

// ControlPlane is a running control plane. Its components can be stopped,
// killed and started again each by itself.
type ControlPlane struct {
	Etcd      *Component
	APIServer *Component
	// ControllerManager is nil unless it was asked for.
	ControllerManager *Component

	dir         string
	temporary   bool
	etcdURL     string
	serviceCIDR netip.Prefix
	slot        *slot
	pki         *pki
	config      *rest.Config
	kubeconfig  string
}

// startTimeout is far more than a start takes, even on a busy machine with a
// million objects to load first.
const startTimeout = 5 * time.Minute

// Start starts a control plane and returns when it is ready. Cancelling ctx
// aborts the start; once started, Stop ends it.
func Start(ctx context.Context, o Options) (*ControlPlane, error) {
	if o.Log == nil {
		o.Log = io.Discard
	}
	names := []string{assets.Etcd, assets.APIServer}
	if o.ControllerManager {
		names = append(names, assets.ControllerManager)
	}
	paths, err := assets.Ensure(ctx, o.Log, names...)
	if err != nil {
		return nil, err
	}
	c := &ControlPlane{dir: o.Dir}
	if err := c.prepare(o, paths); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.start(starting, o.BeforeAPIServer); err != nil {
		if ctx.Err() == nil { // Else nobody wants to know why.
			err = fmt.Errorf("%w\nlogs are kept in %s", err, c.KeepDir())
		}
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *ControlPlane) prepare(o Options, paths map[string]string) (err error) {
	if c.dir == "" {
		c.temporary = true
		if c.dir, err = os.MkdirTemp("", "ipam-guard-controlplane-"); err != nil {
			return fmt.Errorf("make control plane folder: %w", err)
		}
	}
	if c.slot, err = takeSlot(); err != nil {
		return err
	}
	ports, err := c.slot.freePorts(4)
	if err != nil {
		return err
	}
	address := o.Address
	if !address.IsValid() {
		address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	c.serviceCIDR = o.ServiceCIDR
	if !c.serviceCIDR.IsValid() {
		c.serviceCIDR = c.slot.serviceCIDR()
	}
	if c.pki, err = newPKI(filepath.Join(c.dir, "pki"), address, c.serviceCIDR); err != nil {
		return err
	}
	server := "https://" + netip.AddrPortFrom(address, ports[2]).String()
	if c.config, err = c.pki.clientConfig(server, "ipam-guard-admin", "system:masters"); err != nil {
		return err
	}
	c.kubeconfig = filepath.Join(c.dir, "admin.kubeconfig")
	if err := WriteKubeconfig(c.kubeconfig, c.config); err != nil {
		return err
	}
	c.etcdURL = fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	c.Etcd = newEtcd(c, paths[assets.Etcd], ports[1], o.EtcdFlags)
	if c.APIServer, err = newAPIServer(c, paths[assets.APIServer], netip.AddrPortFrom(address, ports[2]), o); err != nil {
		return err
	}
	if o.ControllerManager {
		if c.ControllerManager, err = newControllerManager(c, paths[assets.ControllerManager], server, ports[3], o.ControllerManagerFlags); err != nil {
			return err
		}
	}
	return nil
}

func (c *ControlPlane) start(ctx context.Context, beforeAPIServer func(context.Context, string) error) error {
	if err := c.Etcd.Start(ctx); err != nil {
		return err
	}
	if beforeAPIServer != nil {
		if err := beforeAPIServer(ctx, c.etcdURL); err != nil {
			return fmt.Errorf("before the API server starts: %w", err)
		}
	}
	if err := c.APIServer.Start(ctx); err != nil {
		return err
	}
	if c.ControllerManager != nil {
		return c.ControllerManager.Start(ctx)
	}
	return nil
}

// Stop ends all components and removes a temporary folder. A second call does
// nothing.
func (c *ControlPlane) Stop() error {
	end := (*Component).Stop
	if c.temporary {
		end = (*Component).Kill // Nobody will read this data again.
	}
	var errs []error
	for _, component := range []*Component{c.ControllerManager, c.APIServer, c.Etcd} {
		if component != nil {
			errs = append(errs, end(component))
		}
	}
	if c.temporary {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	if c.slot != nil {
		errs = append(errs, c.slot.release())
		c.slot = nil
	}
	return errors.Join(errs...)
}

// KeepDir makes Stop keep a temporary folder, and returns its path.
func (c *ControlPlane) KeepDir() string {
	c.temporary = false
	return c.dir
}

// Config is a new admin configuration without client-side throttling.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.config) }

// ClientConfig is the configuration of a user who proves by certificate who
// they are.
func (c *ControlPlane) ClientConfig(user string, groups ...string) (*rest.Config, error) {
	return c.pki.clientConfig(c.config.Host, user, groups...)
}

// Kubeconfig is the path of the admin's kubeconfig file.
func (c *ControlPlane) Kubeconfig() string { return c.kubeconfig }

// EtcdEndpoint is etcd's client URL.
func (c *ControlPlane) EtcdEndpoint() string { return c.etcdURL }

// ServiceCIDR is where ClusterIPs come from.
func (c *ControlPlane) ServiceCIDR() netip.Prefix { return c.serviceCIDR }
