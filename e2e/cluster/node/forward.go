//go:build linux

package node

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

const dialTimeout = 5 * time.Second

// accept passes each connection on to serve, until ctx ends.
func accept(ctx context.Context, l net.Listener, serve func(context.Context, net.Conn)) {
	context.AfterFunc(ctx, func() { _ = l.Close() })
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			serve(ctx, conn)
		}()
	}
}

// forwardAPI leads connections to the outside's loopback to the API server.
func forwardAPI(ctx context.Context, server string) error {
	f := os.NewFile(Listener, "listener")
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("listener of the outside: %w", err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	go accept(ctx, l, func(ctx context.Context, conn net.Conn) {
		up, err := dial(ctx, server)
		if err != nil {
			return
		}
		defer up.Close()
		join(conn, conn, up)
	})
	return nil
}

// serveDial connects whoever may open the socket to the address that its first
// line names. The answer is a line too: "ok", or what failed.
func serveDial(ctx context.Context, socket string) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("socket to dial through: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return fmt.Errorf("socket to dial through: %w", err)
	}
	go accept(ctx, l, func(ctx context.Context, conn net.Conn) {
		r := bufio.NewReader(conn)
		to, err := r.ReadString('\n')
		if err != nil {
			return
		}
		up, err := dial(ctx, strings.TrimSpace(to))
		if err != nil {
			_, _ = fmt.Fprintln(conn, err)
			return
		}
		defer up.Close()
		if _, err := fmt.Fprintln(conn, "ok"); err != nil {
			return
		}
		join(conn, r, up)
	})
	return nil
}

func dial(ctx context.Context, to string) (net.Conn, error) {
	return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", to)
}

// join copies both ways until one side ends.
func join(conn net.Conn, from io.Reader, up net.Conn) {
	done := make(chan struct{}, 2)
	for w, r := range map[io.Writer]io.Reader{up: from, conn: up} {
		go func() {
			_, _ = io.Copy(w, r)
			done <- struct{}{}
		}()
	}
	<-done
}
