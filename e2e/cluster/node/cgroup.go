//go:build linux

package node

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

const cgroups = "/sys/fs/cgroup"

// Cgroup is the name of the cluster's own control group, below which all pods' are.
func (l Layout) Cgroup() string {
	h := fnv.New32a()
	h.Write([]byte(l))
	return fmt.Sprintf("ipam-guard-%08x", h.Sum32())
}

// hierarchies are where control groups can be made: one folder with version 2,
// one for each controller with version 1.
func hierarchies() (dirs []string, unified bool, err error) {
	if _, err := os.Stat(filepath.Join(cgroups, "cgroup.controllers")); err == nil {
		return []string{cgroups}, true, nil
	}
	entries, err := os.ReadDir(cgroups)
	if err != nil {
		return nil, false, fmt.Errorf("control groups: %w", err)
	}
	for _, e := range entries {
		// Others are symbolic links to these.
		if e.IsDir() {
			dirs = append(dirs, filepath.Join(cgroups, e.Name()))
		}
	}
	return dirs, false, nil
}

func makeCgroup(l Layout) error {
	dirs, unified, err := hierarchies()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		own := filepath.Join(dir, l.Cgroup())
		if err := os.MkdirAll(own, 0o755); err != nil {
			return fmt.Errorf("make control group: %w", err)
		}
		if unified {
			for _, d := range []string{dir, own} {
				if err := os.WriteFile(filepath.Join(d, "cgroup.subtree_control"), []byte("+cpu +cpuset +memory +pids"), 0o644); err != nil {
					return fmt.Errorf("enable controllers: %w", err)
				}
			}
			continue
		}
		// A cpuset is empty at first, and then holds no process.
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(own, name), bytes.TrimSpace(value), 0o644)
			}
			if err != nil {
				return fmt.Errorf("fill control group: %w", err)
			}
		}
	}
	return nil
}

// emptyWithin is how long a control group may look busy after its last process
// has ended.
const emptyWithin = 20 * time.Second

// RemoveCgroup removes what a cluster that ended left of control groups.
func RemoveCgroup(l Layout) error {
	dirs, _, err := hierarchies()
	if err != nil {
		return err
	}
	for end := time.Now().Add(emptyWithin); ; time.Sleep(100 * time.Millisecond) {
		var errs []error
		for _, dir := range dirs {
			errs = append(errs, removeTree(filepath.Join(dir, l.Cgroup())))
		}
		if err := errors.Join(errs...); !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}

// removeTree removes folders alone, the deepest first; files in a control group
// go with it.
func removeTree(top string) error {
	var found []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() {
			found = append(found, path)
		}
		return err
	})
	errs := []error{err}
	for _, path := range slices.Backward(found) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove control group: %w", err))
		}
	}
	return errors.Join(errs...)
}
