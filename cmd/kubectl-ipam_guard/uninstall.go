package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/access"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/feed"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/pace"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// webhookName is the name of both webhook configurations.
const webhookName = "ipam-guard"

func webhookResources() []schema.GroupVersionResource {
	admission := schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1"}
	return []schema.GroupVersionResource{
		admission.WithResource("mutatingwebhookconfigurations"),
		admission.WithResource("validatingwebhookconfigurations"),
	}
}

func newUninstall(connection *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	u := uninstall{streams: streams, clock: clock.RealClock{}}
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take finalizers and stamps off all handles; a dry run unless --yes",
		Long: `Take IPAM Guard's finalizer and stamp off all handles, and tell what is left to
delete. The webhook configurations go first: they would put both back. The
handles themselves stay as they are.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			u.cfg, u.api, err = cluster(cmd.Context(), connection, u.permissions)
			if err != nil {
				return err
			}
			return u.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&u.yes, "yes", false, "do it; without it, only say what would be done")
	cmd.Flags().BoolVar(&u.force, "force", false, "also free handles that somebody has deleted while an address is in use; Calico cannot release that address then")
	u.audit.addFlag(cmd.Flags(), "each handle as it was")
	cmd.Flags().Float64Var(&u.rate, "rate", 0, "most handles a second; 0 for as fast as the API server allows")
	return cmd
}

type uninstall struct {
	streams    genericiooptions.IOStreams
	clock      clock.Clock
	cfg        *rest.Config
	api        calico.API
	yes, force bool
	rate       float64
	audit      auditFile
}

func (u *uninstall) permissions(api calico.API, machines schema.GroupVersion) []access.Permission {
	wanted := access.Reading(api, machines)
	if u.yes {
		wanted = append(wanted, access.Permission{Resource: api.Handles().GroupResource(), Verbs: []string{"patch"}})
		for _, r := range webhookResources() {
			wanted = append(wanted, access.Permission{Resource: r.GroupResource(), Verbs: []string{"delete"}})
		}
	}
	return wanted
}

func (u *uninstall) run(ctx context.Context) error {
	if u.yes {
		if err := u.deleteWebhooks(ctx); err != nil {
			return err
		}
	}
	inv := inventory.New(u.clock)
	marked := 0
	if err := feed.Once(ctx, u.cfg, u.api, inv, feed.Visitor{Handle: func(h *calico.IPAMHandle) {
		if isMarked(h) {
			marked++
		}
	}}); err != nil {
		return err
	}
	if !u.yes {
		fmt.Fprintf(u.streams.Out, "Would delete both webhook configurations %s, and take finalizer and stamp off %d of %d handles; nothing was changed. Add --yes to do it.\n",
			webhookName, marked, inv.Summary().Handles)
		return nil
	}
	stripped, left, err := u.strip(ctx, inv, marked)
	fmt.Fprintf(u.streams.Out, "Took finalizer and stamp off %d handles; %d are left.\n", stripped, left)
	switch {
	case err != nil:
		return err
	case left > 0:
		return fmt.Errorf("%d handles still carry IPAM Guard's finalizer or stamp: those in use that somebody has deleted are freed with --force; for others run this again", left)
	}
	fmt.Fprintf(u.streams.Out, "Now delete the rest:\n\n  kubectl delete -k config/default\n")
	return nil
}

func (u *uninstall) deleteWebhooks(ctx context.Context) error {
	client, err := metadata.NewForConfig(u.cfg)
	if err != nil {
		return fmt.Errorf("metadata client: %w", err)
	}
	for _, r := range webhookResources() {
		err := client.Resource(r).Delete(ctx, webhookName, metav1.DeleteOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return fmt.Errorf("delete %s %s: %w", r.Resource, webhookName, err)
		default:
			fmt.Fprintf(u.streams.Out, "Deleted %s %s.\n", r.Resource, webhookName)
		}
	}
	return nil
}

const (
	stripPage = 500
	// settle is how long API servers may go on calling a webhook whose
	// configuration was deleted.
	settle = 2 * time.Second
	rounds = 5
)

// strip walks over all handles until a walk finds none to strip.
func (u *uninstall) strip(ctx context.Context, inv *inventory.Inventory, marked int) (stripped, left int, err error) {
	api, err := effect.NewAPI(u.cfg, u.api)
	if err != nil {
		return 0, marked, err
	}
	limit, err := pace.New(u.rate, u.clock)
	if err != nil {
		return 0, marked, err
	}
	record, err := u.audit.open(u.clock)
	if err != nil {
		return 0, marked, err
	}
	defer record.Close()
	effector := effect.New(effect.Options{
		API: api, Evidence: inv, Audit: record, Pace: limit, Clock: u.clock, Grace: verdict.DefaultGrace,
	})
	bar := newProgress(u.streams.ErrOut, u.clock, "handles")
	bar.begin(marked)
	defer bar.end()
	for range rounds {
		done := 0
		left = 0
		cont := ""
		for {
			page, next, err := api.ListHandles(ctx, stripPage, cont)
			if err != nil {
				return stripped, marked - stripped, fmt.Errorf("list handles: %w", err)
			}
			for i := range page {
				if !isMarked(&page[i]) {
					continue
				}
				result, err := effector.Strip(ctx, &page[i], u.force)
				if errors.Is(err, context.Canceled) {
					return stripped, marked - stripped, errors.New("interrupted; run this again to go on")
				}
				if err != nil {
					return stripped, marked - stripped, err
				}
				switch result.Outcome {
				case effect.Done, effect.Vanished:
					done++
					bar.step()
				default:
					left++
				}
			}
			if cont = next; cont == "" {
				break
			}
		}
		stripped += done
		if done == 0 {
			return stripped, left, nil
		}
		select {
		case <-ctx.Done():
			return stripped, left, ctx.Err()
		case <-u.clock.After(settle):
		}
	}
	return stripped, left, nil
}

func isMarked(h *calico.IPAMHandle) bool {
	if _, stamped := h.Annotations[ownership.StampAnnotation]; stamped {
		return true
	}
	for _, f := range h.Finalizers {
		if f == ownership.Finalizer {
			return true
		}
	}
	return false
}
