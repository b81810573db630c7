package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/inventory"
)

// server is an API server with one resource, nodes, whose watches say only
// what the test has them say.
type server struct {
	// small makes one read bring all objects.
	small bool
	// ResourceInterface is nil: what is not overridden is not called.
	metadata.ResourceInterface

	mu      sync.Mutex
	pages   [][]string // names, by page
	rv      uint64     // of lists
	each    uint64     // of the objects in lists; rv when 0
	lists   int
	expire  int // of the lists' second pages, how many fail
	listErr error
	// watches are those of the reflector, probes the others.
	watches, probes chan *fakeWatch
	watchErr        error
}

type fakeWatch struct {
	*watch.FakeWatcher
	from     string
	bookmark bool
	seconds  int64
}

func newServer(rv uint64, pages ...[]string) *server {
	return &server{pages: pages, rv: rv, watches: make(chan *fakeWatch, 10), probes: make(chan *fakeWatch, 10)}
}

func (s *server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *server) page(_ context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	if s.listErr != nil {
		return nil, s.listErr
	}
	list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatUint(s.rv, 10)}}
	n := 0
	if o.Continue != "" {
		n, _ = strconv.Atoi(strings.TrimPrefix(o.Continue, "rest-"))
		if s.expire > 0 {
			s.expire--
			err := apierrors.NewResourceExpired("compacted")
			err.ErrStatus.Continue = "rest-" + o.Continue
			return nil, err
		}
	}
	if n < len(s.pages) {
		for _, name := range s.pages[n] {
			list.Items = append(list.Items, *node(name, cmp.Or(s.each, s.rv)))
		}
		if n+1 < len(s.pages) {
			list.Continue = strconv.Itoa(n + 1)
		}
	}
	return list, nil
}

func (s *server) follow(to chan *fakeWatch, o metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watchErr != nil {
		return nil, s.watchErr
	}
	w := &fakeWatch{FakeWatcher: watch.NewFakeWithChanSize(10, false), from: o.ResourceVersion, bookmark: o.AllowWatchBookmarks}
	if o.TimeoutSeconds != nil {
		w.seconds = *o.TimeoutSeconds
	}
	to <- w
	return w, nil
}

// List implements metadata.ResourceInterface, for the proof of freshness.
func (s *server) List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	if o.Limit != 1 && o.Limit != smallList || o.ResourceVersion != "" {
		return nil, fmt.Errorf("that is no small consistent read: %+v", o)
	}
	last := o.Continue == "more"
	o.Continue = ""
	list, err := s.page(ctx, o)
	if err == nil && !s.small && !last {
		list.Continue = "more"
	}
	return list, err
}

// Watch implements metadata.ResourceInterface, for the proof of freshness.
func (s *server) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return s.follow(s.probes, o)
}

func node(name string, rv uint64) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: strconv.FormatUint(rv, 10)}}
}

// start runs a feed of the server's nodes until the test ends.
func start(t *testing.T, server *server) (*Feed, *inventory.Inventory) {
	t.Helper()
	inv := inventory.New(clock.RealClock{})
	s := newStream(source{
		resource: inventory.Nodes, example: &metav1.PartialObjectMetadata{}, metadata: server,
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return server.page(ctx, o) },
		watch: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return server.follow(server.watches, o)
		},
		apply:  func(o runtime.Object) { inv.ApplyNode(o.(metav1.Object)) }, //nolint:errcheck // a test's own objects
		remove: func(_, name string, rv uint64) { inv.DeleteNode(name, rv) },
	}, inv, clock.RealClock{}, logr.Discard())
	f := &Feed{streams: []*stream{s}, clock: clock.RealClock{}}
	f.join()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("feed: %v", err)
		}
	})
	return f, inv
}

func nodes(inv *inventory.Inventory) string {
	var found []string
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		if inv.HasNode(name) {
			found = append(found, name)
		}
	}
	return strings.Join(found, "")
}

func TestFeedFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer(10, []string{"a", "b"}, []string{"c"})
		f, inv := start(t, server)
		if err := f.WaitForSync(t.Context()); err != nil {
			t.Fatal(err)
		}
		w := <-server.watches
		if w.from != "10" || !w.bookmark {
			t.Errorf("it watches from %q, with bookmarks %v", w.from, w.bookmark)
		}
		w.Add(node("d", 11))
		w.Modify(node("b", 12))
		w.Delete(node("a", 13))
		synctest.Wait()
		if got := nodes(inv); got != "bcd" {
			t.Errorf("it has %q", got)
		}
		w.Action(watch.Bookmark, node("", 20))
		synctest.Wait()
		if got := f.streams[0].reachedVersion(); got != 20 {
			t.Errorf("a bookmark brings it to %d", got)
		}
		time.Sleep(time.Hour)
		if server.lists != 2 {
			t.Errorf("at rest it lists: %d pages", server.lists)
		}
	})
}

func TestFeedListsAnewWhenItsWatchExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer(10, []string{"a", "b"})
		f, inv := start(t, server)
		w := <-server.watches
		server.set(func() { server.pages, server.rv = [][]string{{"b", "e"}}, 30 })
		gone := apierrors.NewResourceExpired("too old").Status()
		w.Error(&gone)
		w = <-server.watches
		if got := nodes(inv); got != "be" || w.from != "30" {
			t.Errorf("it has %q and watches from %s", got, w.from)
		}
		if c := f.Conditions()[0]; !c.Synced || !c.Connected || c.Err != nil {
			t.Errorf("its condition is %+v", c)
		}
	})
}

func TestFeedBeginsAnewWhenPagesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer(10, []string{"a"}, []string{"b"})
		server.expire = 2
		_, inv := start(t, server)
		<-server.watches
		if got := nodes(inv); got != "ab" || server.lists != 6 {
			t.Errorf("it has %q after %d requests", got, server.lists)
		}
	})
}

func TestOneLookGoesOnWhenPagesExpire(t *testing.T) {
	server := newServer(10, []string{"a"}, []string{"b"}, []string{"c"})
	server.expire = 1
	s := source{resource: inventory.Nodes, list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return server.page(ctx, o) }}
	var seen []string
	_, err := s.pages(t.Context(), true, func(o runtime.Object) {
		seen = append(seen, o.(metav1.Object).GetName()) //nolint:errcheck // a test's own objects
	})
	if err != nil || !slices.Equal(seen, []string{"a", "b", "c"}) {
		t.Errorf("it sees %v, error %v", seen, err)
	}
	server.expire = 2
	if _, err = s.pages(t.Context(), false, func(runtime.Object) {}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a list of one moment survives its end: %v", err)
	}
}

func TestConditions(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no rule"))
	synctest.Test(t, func(t *testing.T) {
		server := newServer(10, []string{"a"})
		server.listErr = forbidden
		f, _ := start(t, server)
		condition := func() Condition { return f.Conditions()[0] }

		time.Sleep(brokenAfter)
		if c := condition(); c.Synced || c.Connected || !apierrors.IsForbidden(c.Err) || c.Resource != "nodes" {
			t.Errorf("without permission its condition is %+v", c)
		}
		if text := condition().Err.Error(); strings.Contains(text, "\n") || !strings.Contains(text, "list nodes") {
			t.Errorf("the error does not say in a line what it may not do: %q", text)
		}
		server.set(func() { server.listErr = nil })
		w := <-server.watches
		synctest.Wait()
		if c := condition(); !c.Synced || !c.Connected || c.Err != nil || c.Lag != 0 {
			t.Errorf("once it may, its condition is %+v", c)
		}
		time.Sleep(time.Minute)
		down := errors.New("connection refused")
		server.set(func() { server.watchErr = down })
		w.Stop()
		time.Sleep(brokenAfter - time.Millisecond)
		if c := condition(); !c.Connected {
			t.Errorf("right after its watch ended its condition is %+v", c)
		}
		time.Sleep(time.Second)
		if c := condition(); c.Connected || !c.Synced || !errors.Is(c.Err, down) || c.Lag < brokenAfter {
			t.Errorf("without a watch its condition is %+v", c)
		}
		server.set(func() { server.watchErr = nil })
		<-server.watches
		synctest.Wait()
		if c := condition(); !c.Connected || c.Err != nil {
			t.Errorf("with a new watch its condition is %+v", c)
		}
	})
}

func TestProveFresh(t *testing.T) {
	for name, tc := range map[string]struct {
		newest uint64
		// probes are what the API server tells, probe by probe.
		probes []func(*fakeWatch)
		// follows is what the cache's own watch tells meanwhile.
		follows func(*fakeWatch)
		want    error
	}{
		"a cache that is there already is fresh": {newest: 10},
		"a quiet cache is fresh once a bookmark shows that nothing changed": {
			newest: 15,
			probes: []func(*fakeWatch){func(p *fakeWatch) { p.Action(watch.Bookmark, node("", 15)) }},
		},
		"a cache without a change that was written before is not": {
			newest: 15,
			probes: []func(*fakeWatch){func(p *fakeWatch) {
				p.Modify(node("a", 12))
				p.Action(watch.Bookmark, node("", 16))
			}},
			want: context.DeadlineExceeded,
		},
		"nor one without a deletion": {
			newest: 15,
			probes: []func(*fakeWatch){func(p *fakeWatch) {
				p.Delete(node("a", 12))
				p.Action(watch.Bookmark, node("", 15))
			}},
			want: context.DeadlineExceeded,
		},
		"it is once that change came": {
			newest: 15,
			probes: []func(*fakeWatch){func(p *fakeWatch) {
				p.Modify(node("a", 12))
				p.Action(watch.Bookmark, node("", 15))
			}},
			follows: func(w *fakeWatch) { w.Modify(node("a", 12)) },
		},
		"a change after the call is not waited for": {
			newest: 15,
			probes: []func(*fakeWatch){func(p *fakeWatch) { p.Modify(node("a", 17)) }},
		},
		"a probe that ends early is taken up again, with what it saw": {
			newest: 15,
			probes: []func(*fakeWatch){
				func(p *fakeWatch) { p.Modify(node("a", 12)); p.Stop() },
				func(p *fakeWatch) {
					if p.from != "12" {
						p.Error(&metav1.Status{Message: "goes on from " + p.from})
						return
					}
					p.Action(watch.Bookmark, node("", 15))
				},
			},
			want: context.DeadlineExceeded,
		},
		"a bookmark that falls short proves nothing": {
			newest: 15,
			probes: []func(*fakeWatch){
				func(p *fakeWatch) { p.Action(watch.Bookmark, node("", 14)); p.Stop() },
				func(*fakeWatch) {},
			},
			want: context.DeadlineExceeded,
		},
		"an API server whose bookmarks fall short is read whole, and its newest object waited for": {
			newest: 15,
			probes: slices.Repeat([]func(*fakeWatch){
				func(p *fakeWatch) { p.Action(watch.Bookmark, node("", 14)); p.Stop() },
			}, maxProbes),
			follows: func(w *fakeWatch) { w.Modify(node("a", 15)) },
		},
		"a busy cache need not wait for the probe": {
			newest:  15,
			probes:  []func(*fakeWatch){func(*fakeWatch) {}},
			follows: func(w *fakeWatch) { w.Modify(node("a", 15)) },
		},
		"a datastore that was set back is an error": {newest: 9, want: errSetBack},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newServer(10, []string{"a"})
				f, _ := start(t, server)
				w := <-server.watches
				synctest.Wait()
				server.set(func() { server.rv = tc.newest })
				ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
				defer stop()
				result := make(chan error, 1)
				go func() { result <- f.ProveFresh(ctx) }()
				for _, tell := range tc.probes {
					p := <-server.probes
					if !p.bookmark || p.seconds != probeSeconds {
						t.Errorf("the probe asks for no bookmark: %+v", p)
					}
					tell(p)
				}
				if tc.follows != nil {
					synctest.Wait()
					select {
					case err := <-result:
						t.Errorf("it does not wait for the cache: %v", err)
						result <- err
					default:
					}
					tc.follows(w)
				}
				if err := <-result; !errors.Is(err, tc.want) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
			})
		})
	}
}

func TestProveFreshTellsOfErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer(10, []string{"a"})
		server.listErr = errors.New("away")
		f, _ := start(t, server)
		if err := f.ProveFresh(t.Context()); err == nil {
			t.Error("a cache that was never listed is fresh")
		}
		server.set(func() { server.listErr = nil })
		w := <-server.watches
		synctest.Wait()

		server.set(func() { server.rv = 15 })
		go func() {
			gone := apierrors.NewResourceExpired("too old").Status()
			(<-server.probes).Error(&gone)
		}()
		if err := f.ProveFresh(t.Context()); !apierrors.IsResourceExpired(err) {
			t.Errorf("a probe from too far back: %v", err)
		}
		server.set(func() { server.watchErr = errors.New("refused") })
		if err := f.ProveFresh(t.Context()); err == nil {
			t.Error("a probe that is refused proves freshness")
		}
		server.set(func() { server.listErr = errors.New("away") })
		if err := f.ProveFresh(t.Context()); err == nil {
			t.Error("a read that fails proves freshness")
		}
		w.Stop()
	})
}

// TestFeedFollowsADatastoreThatWasSetBack: a restored backup has lower
// revisions, so that all it holds looks older than what is known.
func TestFeedFollowsADatastoreThatWasSetBack(t *testing.T) {
	for name, age := range map[string]time.Duration{"soon after it began to watch": 0, "long after": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newServer(100, []string{"a", "b"})
				f, inv := start(t, server)
				<-server.watches
				time.Sleep(age)
				synctest.Wait()
				server.set(func() { server.pages, server.rv = [][]string{{"b", "c"}}, 50 })
				if err := f.ProveFresh(t.Context()); !errors.Is(err, errSetBack) {
					t.Fatalf("got %v", err)
				}
				for w := range server.watches {
					if w.from == "50" {
						break
					}
				}
				synctest.Wait()
				if got := nodes(inv); got != "bc" {
					t.Errorf("it has %q", got)
				}
				if err := f.ProveFresh(t.Context()); err != nil {
					t.Errorf("it does not recover: %v", err)
				}
			})
		})
	}
}

// TestFeedFollowsARestoredBackupOfHigherRevision: revisions may be raised as a
// backup is restored, for watches to end; only its objects look old then.
func TestFeedFollowsARestoredBackupOfHigherRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer(100, []string{"a", "b"})
		_, inv := start(t, server)
		w := <-server.watches
		w.Modify(node("d", 110))
		synctest.Wait()
		server.set(func() {
			server.pages, server.rv, server.each = [][]string{{"b", "c"}}, 1000, 90
		})
		gone := apierrors.NewResourceExpired("compacted").Status()
		w.Error(&gone)
		if w = <-server.watches; w.from != "1000" {
			t.Errorf("it watches from %s", w.from)
		}
		if got := nodes(inv); got != "bc" {
			t.Errorf("it has %q", got)
		}
		w.Delete(node("b", 1001))
		w.Modify(node("c", 1002))
		synctest.Wait()
		// What it holds is the backup's: an older state of that is refused again.
		inv.DeleteNode("c", 1001)
		if got := nodes(inv); got != "c" {
			t.Errorf("after its watch went on it has %q", got)
		}
	})
}

// TestFeedComparesRevisionsWhenTheAPIServerWasAway: a watch from a revision
// that is yet to come stays silent until then.
func TestFeedComparesRevisionsWhenTheAPIServerWasAway(t *testing.T) {
	for name, tc := range map[string]struct {
		rv   uint64
		from string
		has  string
	}{
		"a restored backup is listed anew":               {rv: 50, from: "50", has: "bc"},
		"the same datastore is followed where it was":    {rv: 100, from: "100", has: "ab"},
		"one that went on is followed where it was left": {rv: 120, from: "100", has: "ab"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newServer(100, []string{"a", "b"})
				_, inv := start(t, server)
				w := <-server.watches
				time.Sleep(time.Minute) // A watch of less than a second is no watch to go on with.
				server.set(func() {
					server.pages, server.rv = [][]string{{"b", "c"}}, tc.rv
					server.watchErr = fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
				})
				w.Stop()
				time.Sleep(time.Minute)
				server.set(func() { server.watchErr = nil })
				if w = <-server.watches; w.from != tc.from {
					t.Errorf("it watches from %s", w.from)
				}
				if got := nodes(inv); got != tc.has {
					t.Errorf("it has %q", got)
				}
			})
		})
	}
}

// TestOneResourceSetBackHasTheOthersListedAnew: what one resource's list tells
// is true of all.
func TestOneResourceSetBackHasTheOthersListedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, other := newServer(100, []string{"a"}), newServer(100, []string{"b"})
		f, _ := start(t, one)
		g, inv := start(t, other)
		f.streams[0].setBack = func() { g.relist(nil) }
		w := <-one.watches
		<-other.watches
		synctest.Wait()
		one.set(func() { one.rv, one.each = 1000, 90 })
		other.set(func() { other.pages, other.rv, other.each = [][]string{{"b", "e"}}, 1000, 90 })
		gone := apierrors.NewResourceExpired("compacted").Status()
		w.Error(&gone)
		for w := range other.watches {
			if w.from == "1000" {
				break
			}
		}
		if got := nodes(inv); got != "be" {
			t.Errorf("the other has %q", got)
		}
	})
}

// TestAProofWaitsForAWatch: while there is none, a list may be about to tell
// that what was seen no longer is.
func TestAProofWaitsForAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer(10, []string{"a"})
		server.small = true
		f, _ := start(t, server)
		w := <-server.watches
		synctest.Wait()
		server.set(func() { server.watchErr = errors.New("refused") })
		w.Stop()
		synctest.Wait()
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if err := f.ProveFresh(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a watch: %v", err)
		}
		server.set(func() { server.watchErr = nil })
		if err := f.ProveFresh(t.Context()); err != nil {
			t.Errorf("with one again: %v", err)
		}
	})
}

func TestProveFreshOfFewObjectsNeedsNoProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer(10, []string{"a"})
		server.small = true
		f, _ := start(t, server)
		if err := f.WaitForSync(t.Context()); err != nil {
			t.Fatal(err)
		}
		w := <-server.watches
		if err := f.ProveFresh(t.Context()); err != nil {
			t.Fatalf("a cache that has all: %v", err)
		}
		server.mu.Lock()
		server.rv = 15 // The one object was written, and the watch is yet to tell.
		server.mu.Unlock()
		proven := make(chan error, 1)
		go func() { proven <- f.ProveFresh(t.Context()) }()
		time.Sleep(time.Second)
		select {
		case err := <-proven:
			t.Fatalf("a stale cache was proven fresh: %v", err)
		default:
		}
		w.Modify(node("a", 15))
		if err := <-proven; err != nil {
			t.Fatal(err)
		}
		if len(server.probes) != 0 {
			t.Error("it probed")
		}
	})
}
