// Package terminal says what an output can show.
package terminal

import (
	"io"
	"os"

	"golang.org/x/term"

	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// Is tells whether w is a terminal.
func Is(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) //nolint:gosec // a file descriptor fits
}

// Palette colours text, or leaves it as it is; the zero value leaves it.
type Palette struct{ on bool }

// For is the palette for w: colours on a terminal alone, and none where the
// environment sets NO_COLOR to anything, or TERM to dumb.
func For(w io.Writer, getenv func(string) string) Palette {
	return Palette{Is(w) && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"}
}

// Bold is for what a reader looks for first.
func (p Palette) Bold(s string) string { return p.wrap("1", s) }

// Bad is for what should not be so.
func (p Palette) Bad(s string) string { return p.wrap("31", s) }

// Good is for what should be so.
func (p Palette) Good(s string) string { return p.wrap("32", s) }

// Warn is for what somebody should look at.
func (p Palette) Warn(s string) string { return p.wrap("33", s) }

// Number is bad unless it is zero.
func (p Palette) Number(n int, s string) string {
	if n == 0 {
		return p.Good(s)
	}
	return p.Bad(s)
}

// Outcome colours s by what a verdict's outcome means.
func (p Palette) Outcome(outcome, s string) string {
	switch outcome {
	case verdict.Orphaned.String():
		return p.Bad(s)
	case verdict.InUse.String(), verdict.Reserved.String():
		return p.Good(s)
	default:
		return p.Warn(s)
	}
}

func (p Palette) wrap(code, s string) string {
	if !p.on || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
