// Package audit records each effect with all that is needed to undo it.
package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

// Action is what was done.
type Action string

// The actions.
const (
	// Sweep is written before the delete is sent, so that no crash can lose it.
	Sweep Action = "sweep"
	// Kept takes a Sweep of the same UID back: the delete did not happen.
	Kept Action = "kept"
	// Release is a finalizer taken off.
	Release Action = "release"
	// Complete is a stamp completed with the pod that leaked the handle.
	Complete Action = "complete"
	// Repair is a handle rewritten, created or revived to agree with the blocks.
	Repair Action = "repair"
	// Restore is a swept handle brought back.
	Restore Action = "restore"
	// Strip is a finalizer and a stamp taken off by an uninstall.
	Strip Action = "strip"
)

// Record is one effect.
type Record struct {
	Time   time.Time `json:"time"`
	Action Action    `json:"action"`
	// Verdict and Reason are the stable codes; Detail is for people.
	Verdict string `json:"verdict,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Detail  string `json:"detail,omitempty"`
	// Handle is the whole object as it was before the effect.
	Handle *calico.IPAMHandle `json:"handle"`
}

// Log takes records. An error means that the record is not kept; the effect
// must not happen then.
type Log interface {
	Write(Record) error
}

// ToLogger writes records as structured log lines under the key "audit".
func ToLogger(log logr.Logger) Log { return logSink{log} }

type logSink struct{ log logr.Logger }

func (s logSink) Write(r Record) error {
	s.log.Info("effect", "audit", r)
	return nil
}

// File is a Log that appends JSON lines to a file. A record is handed to the
// operating system before Write returns.
type File struct {
	mu   sync.Mutex
	file *os.File
}

// OpenFile opens or creates the file at path for appending.
func OpenFile(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open audit file: %w", err)
	}
	if err := endLine(f); err != nil {
		return nil, errors.Join(fmt.Errorf("open audit file: %w", err), f.Close())
	}
	return &File{file: f}, nil
}

// endLine ends a last line that a crash cut short, so that it spoils no other.
func endLine(f *os.File) error {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, info.Size()-1); err != nil {
		return err
	}
	if last[0] != '\n' {
		_, err = f.WriteString("\n")
	}
	return err
}

// Write implements Log.
func (f *File) Write(r Record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode audit record: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write audit record: %w", err)
	}
	return nil
}

// Close syncs and closes the file.
func (f *File) Close() error {
	return errors.Join(f.file.Sync(), f.file.Close())
}

// Read gives each record of r to visit, in order. It accepts plain records and
// log lines that hold one under "audit", with the prefix too that kubectl gives
// the lines of several pods; what else a log holds is passed over. So is a line
// that was cut short: what it would have recorded was not done. Any other damaged
// record is an error that names its line's number.
func Read(r io.Reader, visit func(Record) error) error {
	lines := bufio.NewReaderSize(r, 64<<10)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return fmt.Errorf("read audit records: %w", err)
		}
		if line = withoutPod(bytes.TrimSpace(line)); isRecord(line) {
			record, ok, err := parse(line)
			switch {
			case err != nil && isCut(line):
			case err != nil:
				return fmt.Errorf("audit line %d: %w", n, err)
			case ok:
				if err := visit(record); err != nil {
					return err
				}
			}
		}
		if last {
			return nil
		}
	}
}

// withoutPod is the line without kubectl's "[pod/name/container] ".
func withoutPod(line []byte) []byte {
	if !bytes.HasPrefix(line, []byte("[pod/")) {
		return line
	}
	_, rest, _ := bytes.Cut(line, []byte("] "))
	return rest
}

// isRecord tells an object, and what may be the rest of a record, from other
// text, such as a crash's.
func isRecord(line []byte) bool {
	return bytes.HasPrefix(line, []byte("{")) || bytes.Contains(line, []byte(`"handle":`))
}

// isCut tells whether the line is the beginning of an object alone.
func isCut(line []byte) bool {
	var whole json.RawMessage
	return line[0] == '{' && errors.Is(json.NewDecoder(bytes.NewReader(line)).Decode(&whole), io.ErrUnexpectedEOF)
}

// parse reads a plain record or a log line around one; ok is false for any
// other JSON object.
func parse(line []byte) (record Record, ok bool, err error) {
	var shape struct {
		Audit  *Record         `json:"audit"`
		Action json.RawMessage `json:"action"`
	}
	if err := json.Unmarshal(line, &shape); err != nil {
		return Record{}, false, err
	}
	switch {
	case shape.Audit != nil:
		record = *shape.Audit
	case shape.Action != nil:
		if err := json.Unmarshal(line, &record); err != nil {
			return Record{}, false, err
		}
	default:
		return Record{}, false, nil
	}
	if record.Action == "" || record.Handle == nil {
		return Record{}, false, errors.New("record has no action or no handle")
	}
	return record, true, nil
}
