package controlplane_test

import (
	"net"
	"testing"
	"time"
)

func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still not so: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func listenOn(t *testing.T, ip string) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatalf("bind the ClusterIP: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
