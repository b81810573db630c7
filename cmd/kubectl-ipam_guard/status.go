package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/status"
	"github.com/ipam-guard/ipam-guard/internal/terminal"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// Names that the installation gives.
const (
	defaultNamespace = "ipam-guard-system"
	managerName      = "ipam-guard-manager"
	certificateName  = "ipam-guard-webhook"
)

// managerStatus is what status tells, as JSON and YAML spell it.
type managerStatus struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Up         bool   `json:"up"`
	// Replicas and Ready are the Deployment's.
	Replicas int32 `json:"replicas"`
	Ready    int32 `json:"ready"`
	// Leader is the replica that sweeps, RenewedAt when it last said so.
	Leader    string     `json:"leader,omitempty"`
	RenewedAt *time.Time `json:"renewedAt,omitempty"`
	// Manager is the sweeping replica's account of itself.
	Manager *status.Status `json:"manager,omitempty"`
	// CertificateExpiry is when the webhooks' certificate ends.
	CertificateExpiry *time.Time `json:"certificateExpiry,omitempty"`
	// Unknown says what could not be read, and what would allow it.
	Unknown []string `json:"unknown,omitempty"`
}

func newStatus(connection *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say whether the manager is up, what it does, and why it pauses",
		Args:  cobra.NoArgs,
	}
	out := newOutput(cmd, "table")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		printer, err := out.printer()
		if err != nil {
			return err
		}
		cfg, err := connect(connection)
		if err != nil {
			return err
		}
		namespace := defaultNamespace
		if connection.Namespace != nil && *connection.Namespace != "" {
			namespace = *connection.Namespace
		}
		s, err := readStatus(cmd.Context(), cfg, namespace)
		if err != nil {
			return err
		}
		if printer != nil {
			return printObject(printer, streams.Out, s)
		}
		return s.print(streams.Out, terminal.For(streams.Out, os.Getenv), clock.RealClock{})
	}
	return cmd
}

func readStatus(ctx context.Context, cfg *rest.Config, namespace string) (*managerStatus, error) {
	core, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	objects, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	s := &managerStatus{APIVersion: "ipam-guard.io/v1", Kind: "ManagerStatus", Namespace: namespace}
	certificates := schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"}
	for _, part := range []struct {
		group, resource, name string
		read                  func() error
	}{
		{"apps", "deployments", managerName, func() error {
			d, err := core.AppsV1().Deployments(namespace).Get(ctx, managerName, metav1.GetOptions{})
			if err == nil {
				s.Replicas, s.Ready = d.Status.Replicas, d.Status.ReadyReplicas
				s.Up = s.Ready > 0
			}
			return err
		}},
		{"coordination.k8s.io", "leases", managerName, func() error {
			l, err := core.CoordinationV1().Leases(namespace).Get(ctx, managerName, metav1.GetOptions{})
			if err == nil && l.Spec.HolderIdentity != nil && l.Spec.RenewTime != nil {
				s.Leader, s.RenewedAt = *l.Spec.HolderIdentity, &l.Spec.RenewTime.Time
			}
			return err
		}},
		{"", "configmaps", status.ConfigMap, func() error {
			told, err := status.Read(ctx, core.CoreV1().ConfigMaps(namespace))
			if err == nil {
				s.Manager = &told
			}
			return err
		}},
		{"cert-manager.io", "certificates", certificateName, func() error {
			c, err := objects.Resource(certificates).Namespace(namespace).Get(ctx, certificateName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			text, _, err := unstructured.NestedString(c.Object, "status", "notAfter")
			if err != nil || text == "" {
				return errors.New("it has not been issued")
			}
			expiry, err := time.Parse(time.RFC3339, text)
			s.CertificateExpiry = &expiry
			return err
		}},
	} {
		err := part.read()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case apierrors.IsNotFound(err):
			s.Unknown = append(s.Unknown, fmt.Sprintf("%s %s: there is none in namespace %s", part.resource, part.name, namespace))
		case apierrors.IsForbidden(err):
			s.Unknown = append(s.Unknown, fmt.Sprintf("%s %s: grant this account {apiGroups: [%q], resources: [%q], verbs: [get]} in namespace %s",
				part.resource, part.name, part.group, part.resource, namespace))
		case apierrors.ReasonForError(err) == metav1.StatusReasonUnknown && s.Manager == nil && part.resource == "deployments":
			// The API server itself does not answer.
			return nil, err
		default:
			s.Unknown = append(s.Unknown, fmt.Sprintf("%s %s: %v", part.resource, part.name, err))
		}
	}
	return s, nil
}

func (s *managerStatus) print(out io.Writer, colour terminal.Palette, c clock.PassiveClock) error {
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(table, name+"\t"+format+"\n", args...) }
	up := colour.Bad("down")
	if s.Up {
		up = colour.Good("up")
	}
	row("Manager", "%s, %d of %d replicas ready in namespace %s", up, s.Ready, s.Replicas, s.Namespace)
	if s.RenewedAt != nil {
		row("Leader", "%s, renewed %s ago", s.Leader, verdict.Age(c.Since(*s.RenewedAt)))
	}
	if m := s.Manager; m != nil {
		row("Version", "%s, on %s", m.Version, m.APIGroup)
		row("Mode", "sweep %s, guard %s", m.Sweep, m.Guard)
		if len(m.Paused) == 0 {
			row("Paused", "no")
		}
		for _, p := range m.Paused {
			row("Paused", "%s since %s: %s", colour.Warn(p.Reason), verdict.Age(c.Since(p.Since)), p.Message)
		}
		if p := m.LastPass; p != nil {
			row("Last pass", "%s ago: %d handles, %d swept, %d conflicts, %d failed", verdict.Age(c.Since(p.Ended)), p.Handles, p.Swept, p.Conflicts, p.Failed)
			if p.WouldSweep > 0 {
				row("", "%d would have been swept", p.WouldSweep)
			}
			if p.Error != "" {
				row("", "ended early: %s", p.Error)
			}
		}
		row("Told", "%s ago", verdict.Age(c.Since(m.Updated)))
	}
	if s.CertificateExpiry != nil {
		left := s.CertificateExpiry.Sub(c.Now())
		if left < 0 {
			row("Certificate", "%s %s ago", colour.Bad("EXPIRED"), verdict.Age(-left))
		} else {
			row("Certificate", "valid for another %s", verdict.Age(left))
		}
	}
	if len(s.Unknown) > 0 {
		row("Not known", "%s", strings.Join(s.Unknown, "\n\t"))
	}
	return table.Flush()
}
