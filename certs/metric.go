package certs

import "github.com/prometheus/client_golang/prometheus"

var expiryDesc = prometheus.NewDesc("ipam_guard_certificate_expiry_seconds",
	"Seconds until the certificate that is served expires, negative after; absent while none is served.", nil, nil)

// expiry reads the certificate that the next handshake would get.
type expiry struct{ server *Server }

// Describe implements prometheus.Collector.
func (expiry) Describe(ch chan<- *prometheus.Desc) { ch <- expiryDesc }

// Collect implements prometheus.Collector.
func (e expiry) Collect(ch chan<- prometheus.Metric) {
	cert, err := e.server.file.served()
	if err != nil || cert == nil {
		return
	}
	left := cert.NotAfter.Sub(e.server.clock.Now()).Seconds()
	ch <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, left)
}
