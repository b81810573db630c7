package assets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// lock takes the file's lock, so that one build runs at a time. The kernel
// frees it when this process ends, however it ends.
func lock(ctx context.Context, path string, log io.Writer) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open build lock: %w", err)
	}
	var told time.Time
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("take build lock: %w", err), f.Close())
		}
		if time.Since(told) >= reportEvery {
			told = time.Now()
			_, _ = fmt.Fprintln(log, "wait for another build of the control plane to end")
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another build: %w", ctx.Err()), f.Close())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
