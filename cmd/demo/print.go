package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"
)

// printer writes what people read, in lines of at most 80 columns.
type printer struct {
	io.Writer
	terminal bool
	begin    time.Time
	shown    time.Time
}

func newPrinter(f *os.File) *printer {
	return &printer{Writer: f, terminal: term.IsTerminal(int(f.Fd())), begin: time.Now()}
}

// step tells what begins, and when.
func (p *printer) step(format string, args ...any) {
	fmt.Fprintf(p, "%5.1fs  %s\n", time.Since(p.begin).Seconds(), fmt.Sprintf(format, args...))
}

// plainEvery is how often a line tells progress where none can be rewritten.
const plainEvery = 3 * time.Second

// progress shows one line, rewritten where the terminal can.
func (p *printer) progress(found, swept, want int, rate float64) {
	if !p.terminal && time.Since(p.shown) < plainEvery && swept < want {
		return
	}
	p.shown = time.Now()
	line := progressLine(time.Since(p.begin), found, swept, want, rate, p.terminal)
	if p.terminal {
		line = "\r\x1b[K" + line
	} else {
		line += "\n"
	}
	fmt.Fprint(p, line)
}

func (p *printer) endProgress() {
	if p.terminal {
		fmt.Fprintln(p)
	}
}

func progressLine(elapsed time.Duration, found, swept, want int, rate float64, bar bool) string {
	left := "?"
	if rate > 0 {
		left = (time.Duration(float64(max(0, want-swept))/rate) * time.Second).String()
	}
	line := fmt.Sprintf("%5.1fs  found %s, swept %s, %s/s, %s left",
		elapsed.Seconds(), comma(found), comma(swept), comma(int(rate)), left)
	if bar {
		const width = 18
		full := width
		if want > 0 {
			full = min(width, width*swept/want)
		}
		line += " " + strings.Repeat("█", full) + strings.Repeat("░", width-full)
	}
	return line
}

// report is the summary, in the words of calicoctl ipam check.
func (p *printer) report(before, after count, checks []check) {
	fmt.Fprintf(p, "\n%-50s %12s %12s\n", "", "before", "after")
	for _, row := range []struct {
		what          string
		before, after int
	}{
		{"handles", len(before.handles), len(after.handles)},
		{"handles with no matching IPs", len(before.unmatched()), len(after.unmatched())},
		{"handles with matches", len(before.matched()), len(after.matched())},
		{"handles mentioned in blocks, but missing", len(before.missing()), len(after.missing())},
	} {
		fmt.Fprintf(p, "%-50s %12s %12s\n", row.what, comma(row.before), comma(row.after))
	}
	fmt.Fprintln(p)
	for _, c := range checks {
		word := "ok"
		if !c.ok {
			word = "WRONG"
		}
		fmt.Fprintf(p, "%-6s %s\n", word, c.text)
	}
}

// comma writes a number with its thousands apart.
func comma(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
