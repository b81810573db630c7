// Package certs serves admission over TLS with a certificate that is reloaded
// while connections go on, and tells early when its renewal fails: by a
// readiness check, a metric and an event.
package certs
