package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// DefaultMargin is how late a renewal may be before it is told. cert-manager
// retries a failed one within the hour, and kubelet takes a minute to bring a
// new Secret into the pod.
const DefaultMargin = 10 * time.Minute

// evaluateInterval is how often the state is looked at when nothing changed
// but the time.
const evaluateInterval = 15 * time.Second

// Options configure a Server.
type Options struct {
	// Host and Port are where it listens; all addresses and 9443 by default.
	Host string
	Port int
	// Dir holds tls.crt and tls.key.
	Dir string
	// MinVersion is the least TLS version; 1.3 by default.
	MinVersion uint16
	// Certificate is the cert-manager Certificate to watch; empty watches none.
	Certificate types.NamespacedName
	// Config reaches the API server; it is needed to watch a Certificate.
	Config *rest.Config
	// Margin defaults to DefaultMargin.
	Margin time.Duration
	// Recorder gets an event about Regarding for each change of state; either
	// may be nil.
	Recorder  events.EventRecorder
	Regarding runtime.Object
	// Registerer gets the metric.
	Registerer prometheus.Registerer
	// Clock defaults to the real one.
	Clock clock.WithTicker
	Log   logr.Logger
}

func (o *Options) complete() error {
	if o.MinVersion == 0 {
		o.MinVersion = tls.VersionTLS13
	}
	if o.Margin == 0 {
		o.Margin = DefaultMargin
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	switch {
	case o.MinVersion < tls.VersionTLS12:
		return fmt.Errorf("TLS version %s is too old to serve admission", tls.VersionName(o.MinVersion))
	case o.Dir == "":
		return errors.New("serving admission needs the folder of its certificate")
	case o.Registerer == nil:
		return errors.New("serving admission needs a registerer for its metric")
	case o.Certificate != types.NamespacedName{} && o.Config == nil:
		return errors.New("watching a Certificate needs a configuration for the API server")
	}
	return nil
}

// Server is a webhook server that waits for its certificate, reloads it, and
// tells when its renewal fails. It serves on every replica, leader or not.
type Server struct {
	webhook.Server

	file      *file
	watch     *watch
	clock     clock.WithTicker
	margin    time.Duration
	recorder  events.EventRecorder
	regarding runtime.Object
	log       logr.Logger
	changes   chan struct{}
}

// NewServer returns a Server to register hooks with and to add to a manager.
func NewServer(o Options) (*Server, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Server{
		clock: o.Clock, margin: o.Margin, recorder: o.Recorder, regarding: o.Regarding, log: o.Log,
		changes: make(chan struct{}, 1),
	}
	s.file = newFile(o.Dir, o.Clock, o.Log, s.changed)
	s.Server = webhook.NewServer(webhook.Options{
		Host: o.Host, Port: o.Port,
		TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.MinVersion = o.MinVersion
			c.GetCertificate = s.file.get
		}},
	})
	if (o.Certificate != types.NamespacedName{}) {
		var err error
		if s.watch, err = newWatch(o.Config, o.Certificate, s.changed); err != nil {
			return nil, err
		}
	}
	if err := o.Registerer.Register(expiry{s}); err != nil {
		return nil, fmt.Errorf("register the certificate's metric: %w", err)
	}
	return s, nil
}

// Start implements manager.Runnable. It returns when ctx ends or serving fails.
func (s *Server) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	// Nothing is told before the file was looked for.
	missing := s.file.open() != nil
	background.Go(func() { s.tell(ctx) })
	if s.watch != nil {
		background.Go(func() { s.watch.run(ctx) })
	}
	if missing && !s.file.wait(ctx) {
		return nil
	}
	background.Go(func() { s.file.follow(ctx) })
	return s.Server.Start(ctx)
}

// State is the certificate's state now.
func (s *Server) State() State {
	f := Facts{Now: s.clock.Now(), Margin: s.margin}
	f.Served, f.Problem = s.file.served()
	if s.watch != nil {
		s.watch.tell(&f)
	}
	return Evaluate(f)
}

// Check is a readiness check. It fails when admission cannot be served. While
// only the renewal is in trouble it fails for whoever asks for this check by
// name or for a verbose answer, never for a plain probe: that would take a
// certificate out of service that is still good.
func (s *Server) Check() healthz.Checker {
	started := s.StartedChecker()
	return func(req *http.Request) error {
		state := s.State()
		if !state.Serving() || (state.Reason != Good && askedInDetail(req)) {
			return fmt.Errorf("%s: %s", state.Reason, state.Message)
		}
		return started(req)
	}
}

// askedInDetail tells a person's request from a probe. Checks asked for by
// name are served at the root of the checks' path.
func askedInDetail(req *http.Request) bool {
	if req == nil || req.URL == nil {
		return false
	}
	_, verbose := req.URL.Query()["verbose"]
	return verbose || (req.URL.Path != "" && req.URL.Path != "/")
}

func (s *Server) changed() {
	select {
	case s.changes <- struct{}{}:
	default:
	}
}

// tell logs each change of state, and makes an event of it.
func (s *Server) tell(ctx context.Context) {
	ticker := s.clock.NewTicker(evaluateInterval)
	defer ticker.Stop()
	last := Good
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changes:
		case <-ticker.C():
		}
		state := s.State()
		if state.Reason == last {
			continue
		}
		last = state.Reason
		kind := corev1.EventTypeWarning
		if state.Reason == Good {
			kind = corev1.EventTypeNormal
		}
		s.log.Info("the serving certificate's state changed", "reason", state.Reason, "message", state.Message)
		if s.recorder != nil && s.regarding != nil {
			s.recorder.Eventf(s.regarding, nil, kind, string(state.Reason), "Serve", "%s", state.Message)
		}
	}
}
