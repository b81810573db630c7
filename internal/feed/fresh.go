package feed

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

// probeSeconds is a probe's length. The API server sends a bookmark two
// seconds before a watch's deadline, so this is the least that brings one.
const probeSeconds = 3

// smallList is how many objects one read brings whole. Up to there it proves
// freshness by itself, in milliseconds rather than a probe's second or two.
const smallList = 1000

// maxProbes is how many probes may fall short: long enough for an etcd that
// tells of its progress each five seconds.
const maxProbes = 3

// errSetBack: the datastore's revision is below one that it once had, as
// restoring a backup does. The caches then hold what no longer is, and a watch
// from where they stand stays silent.
var errSetBack = errors.New("the datastore was set back to an earlier state")

// proveFresh returns nil once the cache has seen all of its resource that was
// written before the call.
//
// A consistent read of few objects brings them all: the newest version among
// them is what the cache must have seen. That a deletion was not seen does no
// harm, for what a cache holds too long keeps a handle, and never sweeps one.
//
// Of more objects it tells the newest revision, R, of the whole datastore. A
// quiet resource's cache does not come to R by itself: its watch hears of it
// only by a bookmark a minute. So a second watch, from where the cache stands,
// asks for one soon. It brings the resource's every change since, in order, up
// to its own end: an event or bookmark at or past R. The newest change up to R
// is all that the cache must have seen.
//
// From Kubernetes 1.31 on the probe need not be repeated for long: the API server
// answers the read from a cache that it first brings up to R, and its bookmarks
// tell how far that cache has come, after the changes before. An older one comes
// to R when etcd tells it of its progress, each five seconds where etcd is set up
// so, else each ten minutes. When a few probes have not come to R, all objects'
// metadata is read instead, as with few objects, in pages of one moment.
func (s *stream) proveFresh(ctx context.Context) error {
	from := s.reachedVersion()
	if from == 0 {
		return fmt.Errorf("%s are not listed yet", s.source.resource)
	}
	limit := int64(smallList)
	if s.large.Load() {
		limit = 1
	}
	list, newest, err := s.newestRevision(ctx, limit)
	if err != nil {
		return err
	}
	changed := uint64(0)
	if list.Continue == "" {
		for i := range list.Items {
			changed = max(changed, version(list.Items[i].ResourceVersion))
		}
		s.large.Store(false)
		return s.waitFollowing(ctx, changed)
	}
	s.large.Store(true)
	for probes := 0; from < newest && s.reachedVersion() < newest; probes++ {
		if probes == maxProbes || s.unprobed.Load() {
			s.unprobed.Store(true)
			if changed, err = s.newestChange(ctx); err != nil {
				return fmt.Errorf("newest change of %s: %w", s.source.resource, err)
			}
			break
		}
		if from, changed, err = s.probe(ctx, from, newest, changed); err != nil {
			return fmt.Errorf("probe %s for changes: %w", s.source.resource, err)
		}
	}
	return s.waitFollowing(ctx, changed)
}

// newestRevision reads up to limit objects, and the datastore's newest revision.
func (s *stream) newestRevision(ctx context.Context, limit int64) (*metav1.PartialObjectMetadataList, uint64, error) {
	known := s.reachedVersion()
	list, err := s.source.metadata.List(ctx, metav1.ListOptions{Limit: limit})
	if err != nil {
		return nil, 0, fmt.Errorf("newest revision of %s: %w", s.source.resource, err)
	}
	newest := version(list.ResourceVersion)
	if newest == 0 {
		return nil, 0, fmt.Errorf("newest revision of %s: %q is no number", s.source.resource, list.ResourceVersion)
	}
	if newest < known {
		return nil, 0, fmt.Errorf("newest revision of %s is %d, after %d: %w", s.source.resource, newest, known, errSetBack)
	}
	return list, newest, nil
}

// newestChange is the newest version among all objects, as of one moment after
// the call.
func (s *stream) newestChange(ctx context.Context) (uint64, error) {
	changed := uint64(0)
	for o := (metav1.ListOptions{Limit: smallList}); ; {
		page, err := s.source.metadata.List(ctx, o)
		if err != nil {
			return 0, err
		}
		for i := range page.Items {
			changed = max(changed, version(page.Items[i].ResourceVersion))
		}
		if o.Continue = page.Continue; o.Continue == "" {
			return changed, nil
		}
	}
}

// probe reads changes after from until newest or its own end. It returns how
// far it came, and the newest change up to newest.
func (s *stream) probe(ctx context.Context, from, newest, changed uint64) (uint64, uint64, error) {
	w, err := s.source.metadata.Watch(ctx, metav1.ListOptions{
		ResourceVersion:     strconv.FormatUint(from, 10),
		AllowWatchBookmarks: true,
		TimeoutSeconds:      ptr.To[int64](probeSeconds),
	})
	if err != nil {
		return from, changed, err
	}
	defer w.Stop()
	for from < newest {
		select {
		case <-ctx.Done():
			return from, changed, ctx.Err()
		case <-s.clock.After(20 * lookAgain):
			// A busy resource's cache may be there first.
			if s.reachedVersion() >= newest {
				return newest, changed, nil
			}
		case event, open := <-w.ResultChan():
			if !open {
				return from, changed, nil
			}
			if event.Type == watch.Error {
				return from, changed, apierrors.FromObject(event.Object)
			}
			object, err := meta.Accessor(event.Object)
			if err != nil {
				return from, changed, err
			}
			rv := version(object.GetResourceVersion())
			if event.Type != watch.Bookmark && rv <= newest {
				changed = max(changed, rv)
			}
			from = max(from, rv)
		}
	}
	return from, changed, nil
}
