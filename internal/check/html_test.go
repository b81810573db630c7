package check_test

import (
	"fmt"
	"html"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/check"
)

func sample() *check.Report {
	now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	oldest := now.Add(-913 * 24 * time.Hour)
	return &check.Report{
		Time: now, Group: "crd.projectcalico.org/v1", Blocks: 13, Allocations: 537, NodeTunnelIPs: 6, WorkloadIPs: 531,
		HandlesWithMatches: 537, HandlesWithoutMatches: 30_555, HandlesMissing: 2, Problems: 30_557, OldestOrphan: &oldest,
		Verdicts:   []check.Verdict{{Outcome: "Orphaned", Reason: "PodGone", Handles: 30_433}, {Outcome: "InUse", Reason: "Referenced", Handles: 537}, {Outcome: "Orphaned", Reason: "NodeGone", Handles: 122}},
		OwnerKinds: []check.Count{{Name: "PodSandbox", Handles: 31_000}, {Name: "Node", Handles: 92}},
		OrphanAges: []check.Count{{Name: "under 1 h"}, {Name: "1 to 7 d", Handles: 900}, {Name: "1 to 2 y", Handles: 20_000}, {Name: "over 2 y", Handles: 9_655}},
		OrphansByNode: []check.Count{
			{Name: strings.Repeat("a-very-long-node-name-", 8), Handles: 20_000}, {Name: `<script>alert("x")</script>`, Handles: 10_555},
		},
		OrphansByPool: []check.Count{{Name: "default-ipv4-ippool", Handles: 30_555}},
	}
}

func TestHTMLNeedsNoNetworkAndTrustsNoName(t *testing.T) {
	var out strings.Builder
	if err := sample().HTML(&out); err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{"30\u2009555", "2 y 183 d", "Age of orphans", "default-ipv4-ippool", "&lt;script&gt;"} {
		if !strings.Contains(out.String(), shown) {
			t.Errorf("the page does not show %q", shown)
		}
	}
	for _, not := range []string{"<script", "http:", "https:", "//"} {
		if strings.Contains(out.String(), not) {
			t.Errorf("the page holds %q", not)
		}
	}
}

func TestHTMLInChromium(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: the page is not looked at")
	}
	dir := t.TempDir()
	var out strings.Builder
	if err := sample().HTML(&out); err != nil {
		t.Fatal(err)
	}
	for name, screen := range map[string]struct {
		width, height int
		dark          bool
	}{
		"phone": {390, 2400, false}, "desktop": {1280, 1000, false}, "dark desktop": {1280, 1000, true},
	} {
		t.Run(name, func(t *testing.T) {
			shot := filepath.Join(dir, name+".png")
			if keep := os.Getenv("SCREENSHOTS"); keep != "" {
				shot = filepath.Join(keep, name+".png")
			}
			// A window is never as narrow as a phone, so the page is shown in a
			// frame. It has no script; the frame's tells whether it is too wide.
			frame := fmt.Sprintf(`<body style="margin:0"><iframe style="border:0" width="%d" height="%d" srcdoc="%s"></iframe>
				<script>onload = () => { const e = document.querySelector("iframe").contentDocument.scrollingElement;
				document.title = e.scrollWidth > e.clientWidth ? "too wide" : "fits " + e.clientWidth; }</script></body>`,
				screen.width, screen.height, html.EscapeString(out.String()))
			file := filepath.Join(dir, name+".html")
			if err := os.WriteFile(file, []byte(frame), 0o600); err != nil {
				t.Fatal(err)
			}
			flags := []string{
				"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-background-networking",
				"--disable-component-update", "--disable-sync", "--user-data-dir=" + filepath.Join(dir, name),
				fmt.Sprintf("--window-size=%d,%d", max(screen.width, 500), screen.height),
			}
			if screen.dark {
				flags = append(flags, "--blink-settings=preferredColorScheme=0")
			}
			dom, err := exec.CommandContext(t.Context(), chromium, append(flags, "--dump-dom", "file://"+file)...).Output()
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("<title>fits %d</title>", screen.width); !strings.Contains(string(dom), want) {
				t.Errorf("the page is not %s: %.200s", want, dom)
			}
			if text, err := exec.CommandContext(t.Context(), chromium, append(flags, "--screenshot="+shot, "file://"+file)...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			f, err := os.Open(shot)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			picture, err := png.Decode(f)
			if err != nil {
				t.Fatal(err)
			}
			colours := map[[3]uint32]bool{}
			for x := picture.Bounds().Min.X; x < picture.Bounds().Max.X; x += 2 {
				for y := picture.Bounds().Min.Y; y < picture.Bounds().Max.Y; y += 2 {
					r, g, b, _ := picture.At(x, y).RGBA()
					colours[[3]uint32{r, g, b}] = true
				}
			}
			r, g, b, _ := picture.At(2, 2).RGBA()
			if dark := r+g+b < 3*0x6000; dark != screen.dark {
				t.Errorf("the background is %x %x %x, want dark %v", r, g, b, screen.dark)
			}
			if len(colours) < 20 {
				t.Errorf("the screenshot has %d colours: it is blank", len(colours))
			}
		})
	}
}
