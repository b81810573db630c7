package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

const (
	// waitInterval is how often a missing file is looked for.
	waitInterval = time.Second
	// reloadInterval is how often the file is read again, should its change
	// have gone unnoticed.
	reloadInterval = 5 * time.Second
)

// file is a certificate and key on disk, reloaded when they change.
type file struct {
	cert, key string
	clock     clock.WithTicker
	log       logr.Logger
	// changed is told of each new certificate.
	changed func()

	mu      sync.Mutex
	watcher *certwatcher.CertWatcher
	problem error
}

func newFile(dir string, c clock.WithTicker, log logr.Logger, changed func()) *file {
	return &file{
		cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key"),
		clock: c, log: log, changed: changed,
	}
}

// wait returns true when the file could be read, false when ctx ends first.
func (f *file) wait(ctx context.Context) bool {
	ticker := f.clock.NewTicker(waitInterval)
	defer ticker.Stop()
	told := ""
	for {
		err := f.open()
		if err == nil {
			return true
		}
		if err.Error() != told {
			told = err.Error()
			f.log.Info("waiting for the serving certificate", "reason", told)
			f.changed()
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C():
		}
	}
}

func (f *file) open() error {
	watcher, err := certwatcher.New(f.cert, f.key)
	f.mu.Lock()
	f.watcher, f.problem = watcher, err
	f.mu.Unlock()
	if err != nil {
		return err
	}
	watcher.WithWatchInterval(reloadInterval).RegisterCallback(func(tls.Certificate) { f.changed() })
	return nil
}

// follow reloads the file until ctx ends. It must have been read before.
func (f *file) follow(ctx context.Context) {
	f.mu.Lock()
	watcher := f.watcher
	f.mu.Unlock()
	for ctx.Err() == nil {
		// It ends early when the files cannot be watched: they may have been
		// removed for a while. What was read is served on.
		if err := watcher.Start(ctx); err != nil && ctx.Err() == nil {
			f.log.Error(err, "the serving certificate is not watched, trying again")
		}
	}
}

// get is a tls.Config's GetCertificate.
func (f *file) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	watcher := f.watcher
	f.mu.Unlock()
	if watcher == nil {
		return nil, errors.New("no serving certificate yet")
	}
	return watcher.GetCertificate(hello)
}

// served is the certificate that the next handshake gets, nil without one.
func (f *file) served() (*x509.Certificate, error) {
	f.mu.Lock()
	problem, watcher := f.problem, f.watcher
	f.mu.Unlock()
	if watcher == nil {
		return nil, problem
	}
	cert, err := watcher.GetCertificate(nil)
	if err != nil || cert == nil {
		return nil, err
	}
	if cert.Leaf != nil {
		return cert.Leaf, nil
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("parse the serving certificate: %w", err)
	}
	return leaf, nil
}
