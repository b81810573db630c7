package datastore_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/datastore"
)

var api = calico.API{GroupVersion: calico.GroupCRD}

func information(rv, name string, ready *bool) *calico.ClusterInformation {
	return &calico.ClusterInformation{
		TypeMeta:   metav1.TypeMeta{APIVersion: api.String(), Kind: "ClusterInformation"},
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: rv},
		Spec:       calico.ClusterInformationSpec{DatastoreReady: ready},
	}
}

// server lists what there is, and then tells what the test sends.
type server struct {
	there  []calico.ClusterInformation
	refuse bool
	events chan metav1.WatchEvent
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	encode := json.NewEncoder(w)
	switch {
	case s.refuse:
		w.WriteHeader(http.StatusForbidden)
		_ = encode.Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: "no rule allows it",
		})
	case r.URL.Query().Get("watch") == "":
		_ = encode.Encode(calico.ClusterInformationList{
			TypeMeta: metav1.TypeMeta{APIVersion: api.String(), Kind: "ClusterInformationList"},
			ListMeta: metav1.ListMeta{ResourceVersion: "10"}, Items: s.there,
		})
	case r.URL.Query().Get("sendInitialEvents") != "":
		// No streaming of lists here: the client falls back to a list.
		w.WriteHeader(http.StatusBadRequest)
		_ = encode.Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
		})
	default:
		for {
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
			select {
			case <-r.Context().Done():
				return
			case event := <-s.events:
				_ = encode.Encode(event)
			}
		}
	}
}

func (s *server) tell(t *testing.T, kind watch.EventType, info *calico.ClusterInformation) {
	t.Helper()
	raw, err := json.Marshal(info)
	if err != nil {
		t.Fatal(err)
	}
	event := metav1.WatchEvent{Type: string(kind)}
	event.Object.Raw = raw
	s.events <- event
}

func lockOn(t *testing.T, s *server) *datastore.Lock {
	t.Helper()
	s.events = make(chan metav1.WatchEvent, 10)
	web := httptest.NewServer(s)
	l, err := datastore.NewLock(&rest.Config{Host: web.URL}, api, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	if locked, detail := l.State(); !locked || detail == "" {
		t.Errorf("before it was read it is locked: %v, %q", locked, detail)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := l.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
		web.CloseClientConnections()
		web.Close()
	})
	return l
}

// becomes waits for a state; words are part of the detail, or none for "".
func becomes(t *testing.T, l *datastore.Lock, locked bool, words string) {
	t.Helper()
	var got bool
	var detail string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		got, detail = l.State()
		if got == locked && strings.Contains(detail, words) && (detail == "") == (words == "") {
			return
		}
	}
	t.Fatalf("locked is %v, %q, want %v, %q", got, detail, locked, words)
}

func TestLock(t *testing.T) {
	for name, tc := range map[string]struct {
		server *server
		locked bool
		words  string
	}{
		"is open when the datastore is ready":         {&server{there: []calico.ClusterInformation{*information("5", "default", ptr.To(true))}}, false, ""},
		"is open when nobody ever locked it":          {&server{there: []calico.ClusterInformation{*information("5", "default", nil)}}, false, ""},
		"is locked when the datastore is not ready":   {&server{there: []calico.ClusterInformation{*information("5", "default", ptr.To(false))}}, true, "datastoreReady false"},
		"is locked when the object is missing":        {&server{}, true, "does not exist"},
		"is locked when only another object is there": {&server{there: []calico.ClusterInformation{*information("5", "other", ptr.To(true))}}, true, "does not exist"},
		"is locked when the object may not be read":   {&server{refuse: true}, true, "no rule allows it"},
	} {
		t.Run(name, func(t *testing.T) { becomes(t, lockOn(t, tc.server), tc.locked, tc.words) })
	}
}

func TestLockFollows(t *testing.T) {
	s := &server{}
	l := lockOn(t, s)
	becomes(t, l, true, "does not exist")
	s.tell(t, watch.Added, information("11", "default", ptr.To(true)))
	becomes(t, l, false, "")
	s.tell(t, watch.Modified, information("12", "default", ptr.To(false)))
	becomes(t, l, true, "datastoreReady false")
	s.tell(t, watch.Modified, information("13", "default", ptr.To(true)))
	becomes(t, l, false, "")
	s.tell(t, watch.Deleted, information("14", "default", ptr.To(true)))
	becomes(t, l, true, "deleted")
}
