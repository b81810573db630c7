package refcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

const (
	batchSize = 128 // etcd's own limit of operations in a transaction
	loaders   = 4
)

// Load writes the whole cluster into etcd, in the form in which an API server
// stores it. No API server may run yet: it would not see all of it.
func Load(ctx context.Context, etcd string, s Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return LoadObjects(ctx, etcd, s.Objects())
}

// LoadObjects writes objects as Load does. Calico's must have their TypeMeta.
func LoadObjects(ctx context.Context, etcd string, objects iter.Seq[runtime.Object]) error {
	client, err := clientv3.New(clientv3.Config{Context: ctx, Endpoints: []string{etcd}, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("load cluster: connect to etcd: %w", err)
	}
	defer client.Close()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(loaders)
	batch := make([]runtime.Object, 0, batchSize)
	flush := func() {
		full := batch
		batch = make([]runtime.Object, 0, batchSize)
		group.Go(func() error { return put(ctx, client, full) })
	}
	for object := range objects {
		if ctx.Err() != nil {
			break
		}
		if batch = append(batch, object); len(batch) == batchSize {
			flush()
		}
	}
	if len(batch) > 0 {
		flush()
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("load cluster: %w", err)
	}
	return nil
}

func put(ctx context.Context, client *clientv3.Client, objects []runtime.Object) error {
	ops := make([]clientv3.Op, len(objects))
	for i, object := range objects {
		key, err := storageKey(object)
		if err != nil {
			return err
		}
		value, err := json.Marshal(object)
		if err != nil {
			return fmt.Errorf("encode %s: %w", key, err)
		}
		ops[i] = clientv3.OpPut(key, string(value))
	}
	if _, err := client.Txn(ctx).Then(ops...).Commit(); err != nil {
		return fmt.Errorf("write to etcd: %w", err)
	}
	return nil
}

// storageKey is where the API server looks for an object.
func storageKey(object runtime.Object) (string, error) {
	group := object.GetObjectKind().GroupVersionKind().Group
	switch o := object.(type) {
	case *calico.IPAMHandle:
		return "/registry/" + group + "/ipamhandles/" + o.Name, nil
	case *calico.IPAMBlock:
		return "/registry/" + group + "/ipamblocks/" + o.Name, nil
	case *calico.BlockAffinity:
		return "/registry/" + group + "/blockaffinities/" + o.Name, nil
	case *calico.IPPool:
		return "/registry/" + group + "/ippools/" + o.Name, nil
	case *calico.ClusterInformation:
		return "/registry/" + group + "/clusterinformations/" + o.Name, nil
	case *corev1.Namespace:
		return "/registry/namespaces/" + o.Name, nil
	case *corev1.Node:
		return "/registry/minions/" + o.Name, nil
	case *corev1.Pod:
		return "/registry/pods/" + o.Namespace + "/" + o.Name, nil
	case *corev1.Service:
		return "/registry/services/specs/" + o.Namespace + "/" + o.Name, nil
	default:
		return "", fmt.Errorf("no storage key for %T", object)
	}
}

// Objects are all objects of the cluster.
func (s Spec) Objects() iter.Seq[runtime.Object] {
	return func(yield func(runtime.Object) bool) {
		_ = each(slices.Values(s.Namespaces()), yield) && each(s.NodeObjects(), yield) && each(slices.Values(s.Pools()), yield) &&
			yield(s.ClusterInformation()) && each(s.Affinities(), yield) && each(s.PodObjects(), yield) &&
			each(s.LiveHandles(), yield) && each(s.OrphanHandles(), yield) && each(s.Blocks(), yield)
	}
}

func each[T runtime.Object](objects iter.Seq[T], yield func(runtime.Object) bool) bool {
	for object := range objects {
		if !yield(object) {
			return false
		}
	}
	return true
}
