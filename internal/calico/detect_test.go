package calico_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

type fakeCluster struct {
	crd, v3, aggregated, crdBlocks bool
	err                            error
}

func (f fakeCluster) Serves(_ context.Context, gv schema.GroupVersion) (bool, error) {
	if gv == calico.GroupCRD {
		return f.crd, f.err
	}
	return f.v3, f.err
}

func (f fakeCluster) Aggregated(context.Context, schema.GroupVersion) (bool, error) {
	return f.aggregated, nil
}

func (f fakeCluster) HasBlocks(context.Context, calico.API) (bool, error) { return f.crdBlocks, nil }

func TestDetect(t *testing.T) {
	down := errors.New("connection refused")
	for name, tc := range map[string]struct {
		cluster fakeCluster
		want    schema.GroupVersion
		certain bool
		err     error
	}{
		"finds the older group":                                   {fakeCluster{crd: true}, calico.GroupCRD, true, nil},
		"finds the newer group":                                   {fakeCluster{v3: true}, calico.GroupV3, true, nil},
		"takes the older group beside an aggregated newer one":    {fakeCluster{crd: true, v3: true, aggregated: true}, calico.GroupCRD, true, nil},
		"takes the newer group when the older is empty":           {fakeCluster{crd: true, v3: true}, calico.GroupV3, true, nil},
		"is not certain when the older group still holds blocks":  {fakeCluster{crd: true, v3: true, crdBlocks: true}, calico.GroupV3, false, nil},
		"refuses a cluster without Calico":                        {fakeCluster{}, schema.GroupVersion{}, false, calico.ErrNoCalico},
		"refuses an aggregated group alone":                       {fakeCluster{v3: true, aggregated: true}, schema.GroupVersion{}, false, calico.ErrAggregatedOnly},
		"refuses an aggregated group that does not serve handles": {fakeCluster{aggregated: true}, schema.GroupVersion{}, false, calico.ErrAggregatedOnly},
		"tells when the API server does not answer":               {fakeCluster{err: down}, schema.GroupVersion{}, false, down},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := calico.DetectIn(t.Context(), tc.cluster)
			if !errors.Is(err, tc.err) {
				t.Fatalf("got error %v, want %v", err, tc.err)
			}
			if err != nil {
				if strings.Contains(err.Error(), "\n") {
					t.Errorf("the error is more than a line: %q", err)
				}
				return
			}
			if got.API.GroupVersion != tc.want || got.Certain != tc.certain || got.Detail == "" {
				t.Errorf("got %+v, want %s, certain %v, with a detail", got, tc.want, tc.certain)
			}
		})
	}
}
