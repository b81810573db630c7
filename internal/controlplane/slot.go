package controlplane

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
)

// A slot is one share of this machine's loopback: a /16 for Services and some
// ports. Ports lie below the range that Linux gives to outgoing connections,
// so none is lost to a client while an API server restarts.
type slot struct {
	n    int
	lock *os.File
}

const (
	firstSlot    = 96
	lastSlot     = 239
	firstPort    = 20000
	portsPerSlot = 64
)

// takeSlot takes the first free slot. The kernel frees it when this process
// ends, however it ends.
func takeSlot() (*slot, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("ipam-guard-slots-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder for slots: %w", err)
	}
	for n := firstSlot; n <= lastSlot; n++ {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprint(n)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open slot: %w", err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return &slot{n: n, lock: f}, nil
		}
		if err := f.Close(); err != nil {
			return nil, fmt.Errorf("close slot: %w", err)
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("take slot: %w", err)
		}
	}
	return nil, errors.New("too many control planes run on this machine")
}

func (s *slot) release() error { return s.lock.Close() }

func (s *slot) serviceCIDR() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127, byte(s.n), 0, 0}), 16)
}

// freePorts are ports of the slot that nothing listens on.
func (s *slot) freePorts(n int) ([]uint16, error) {
	var free []uint16
	first := firstPort + (s.n-firstSlot)*portsPerSlot
	for port := first; port < first+portsPerSlot && len(free) < n; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("free port %d: %w", port, err)
		}
		free = append(free, uint16(port))
	}
	if len(free) < n {
		return nil, fmt.Errorf("no %d free ports from %d to %d", n, first, first+portsPerSlot-1)
	}
	return free, nil
}
