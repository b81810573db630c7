// Command release builds all that a release consists of, the same bytes from
// the same commit: binaries, archives, the image, install.yaml, the krew
// manifest, bills of material and checksums.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release: "+err.Error())
		os.Exit(1)
	}
}

// release is one release being built.
type release struct {
	// root is the checkout, out the folder that gets the files, work one for
	// what goes into them.
	root, out, work string
	version         string
	// time is the commit's: no file tells when it was built.
	time      time.Time
	platforms []platform
	images    string
	downloads string
}

// platform is an operating system and an architecture, as Go names them.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

// manager tells whether the manager and its image are built for p.
func (p platform) manager() bool { return p.os == "linux" }

// everywhere are the platforms of a whole release.
const everywhere = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64"

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	out := flags.String("out", "dist", "folder for the files, below the repository's root unless absolute; what it holds is deleted")
	version := flags.String("version", "", "version, such as v1.2.3 (default: the tag of the commit, else v0.0.0 with the commit)")
	platforms := flags.String("platforms", everywhere, "what to build for")
	images := flags.String("image", "ghcr.io/ipam-guard/ipam-guard", "name of the image, without tag")
	downloads := flags.String("downloads", "https://github.com/ipam-guard/ipam-guard/releases/download", "where the archives will be")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	r := &release{version: *version, images: *images, downloads: *downloads}
	var err error
	if r.platforms, err = parsePlatforms(*platforms); err != nil {
		return err
	}
	if err := r.inspect(ctx); err != nil {
		return err
	}
	final := *out
	if !filepath.IsAbs(final) {
		final = filepath.Join(r.root, final)
	}
	if err := replaceable(final); err != nil {
		return err
	}
	if r.work, err = os.MkdirTemp("", "ipam-guard-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	// The folder comes whole or not at all.
	if r.out, err = os.MkdirTemp(filepath.Dir(final), ".release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.out)
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"binaries", r.binaries},
		{"image", r.image},
		{"install.yaml", r.install},
		{"bills of material", r.bills},
		{"krew manifest", r.krew},
		{"checksums", r.checksums},
	} {
		fmt.Printf("%s %s\n", r.version, step.what)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	if err := os.RemoveAll(final); err != nil {
		return err
	}
	return errors.Join(os.Chmod(r.out, 0o755), os.Rename(r.out, final)) //nolint:gosec // for everybody
}

func parsePlatforms(list string) ([]platform, error) {
	var platforms []platform
	for text := range strings.SplitSeq(list, ",") {
		os, arch, ok := strings.Cut(strings.TrimSpace(text), "/")
		if !ok || os == "" || arch == "" {
			return nil, fmt.Errorf("-platforms: %q is not of the form os/arch", text)
		}
		platforms = append(platforms, platform{os, arch})
	}
	return platforms, nil
}

// marker tells a folder that this command filled.
const marker = "checksums.txt"

// replaceable is nil when dir may be deleted: it is a release, or empty, or not
// there.
func replaceable(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, marker)); err != nil {
		return fmt.Errorf("%s holds files but no %s: it is no release; name another folder with -out, or empty it", dir, marker)
	}
	return nil
}

var semantic = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// inspect learns version and time from the checkout.
func (r *release) inspect(ctx context.Context) error {
	root, err := output(ctx, "", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	r.root = root
	seconds, err := output(ctx, root, "git", "log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("time of the commit: %w", err)
	}
	r.time = time.Unix(unix, 0).UTC()
	if r.version == "" {
		if r.version, err = output(ctx, root, "git", "describe", "--tags", "--exact-match", "--match", "v*"); err != nil {
			commit, err := output(ctx, root, "git", "rev-parse", "--short=12", "HEAD")
			if err != nil {
				return err
			}
			r.version = "v0.0.0-" + r.time.Format("20060102150405") + "-" + commit
		}
	}
	if !semantic.MatchString(r.version) {
		return fmt.Errorf("-version=%s: of the form v1.2.3 or v1.2.3-rc.1", r.version)
	}
	return nil
}

// output runs a command in dir and returns what it printed.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var errOut strings.Builder
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
