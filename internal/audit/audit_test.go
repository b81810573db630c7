package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

func record() Record {
	h := &calico.IPAMHandle{Spec: calico.IPAMHandleSpec{HandleID: "k8s-pod-network.ABC", Block: map[string]int{"10.0.0.0/26": 1}}}
	h.Name, h.UID, h.ResourceVersion = "k8s-pod-network.abc", "u-1", "42"
	return Record{
		Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Action: Sweep,
		Verdict: "Orphaned", Reason: "PodGone", Detail: "gone", Handle: h,
	}
}

func readAll(t *testing.T, data []byte) []Record {
	t.Helper()
	var got []Record
	if err := Read(bytes.NewReader(data), func(r Record) error {
		got = append(got, r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestAFileGivesBackWhatWasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	for range 2 { // A second opening appends.
		f, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Write(record()); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := readAll(t, data)
	if len(got) != 2 || !reflect.DeepEqual(got[1], record()) {
		t.Errorf("got %+v, want two of %+v", got, record())
	}
}

func TestTheManagersLogIsAnAuditFileToo(t *testing.T) {
	var buf bytes.Buffer
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&buf), zapcore.InfoLevel)
	log := zapr.NewLogger(zap.New(core))
	log.Info("starting", "action", 3)
	if err := ToLogger(log).Write(record()); err != nil {
		t.Fatal(err)
	}
	log.Info("pass ended", "handle", "some name")
	lines := strings.Replace(buf.String(), `"action":3`, `"port":3`, 1)
	got := readAll(t, []byte(lines))
	if len(got) != 1 || !reflect.DeepEqual(got[0], record()) {
		t.Errorf("got %+v from\n%s", got, lines)
	}
}

func TestALogThatKubectlPrefixedIsAnAuditFileToo(t *testing.T) {
	line, err := json.Marshal(map[string]any{"level": "info", "audit": record()})
	if err != nil {
		t.Fatal(err)
	}
	got := readAll(t, []byte("[pod/manager-1/manager] "+string(line)+"\n[pod/manager-2/manager] {}\n"+
		"[pod/manager-2/manager]\nipam-guard: lost the lease\npanic: no matter\n\n"+string(line)))
	if len(got) != 2 || !reflect.DeepEqual(got[0], record()) || !reflect.DeepEqual(got[1], record()) {
		t.Errorf("got %+v, want two of %+v", got, record())
	}
}

func TestALineThatACrashCutShortSpoilsNoOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	write := func() {
		f, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Write(record()), f.Write(record()), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	write()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()-10); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 3} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := readAll(t, data); len(got) != want {
			t.Errorf("got %d records, want %d", len(got), want)
		}
		write()
	}
}

func TestReadNamesADamagedLine(t *testing.T) {
	for name, data := range map[string]string{
		"no JSON":       "{}\n\n" + `"sweep","handle":{}}`,
		"no handle":     "{}\n\n" + `{"action":"sweep"}`,
		"a wrong shape": "{}\n\n" + `{"action":"sweep","handle":7}`,
	} {
		t.Run(name, func(t *testing.T) {
			err := Read(strings.NewReader(data), func(Record) error { return nil })
			if err == nil || !strings.Contains(err.Error(), "line 3") {
				t.Errorf("got %v, want an error that names line 3", err)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"action":"sweep","handle":{"metadata":{"name":"a"},"spec":{"handleID":"a","block":{}}}}`))
	f.Add([]byte(`{"level":"info","audit":{"action":"kept","handle":{}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = Read(bytes.NewReader(data), func(r Record) error {
			if r.Action == "" || r.Handle == nil {
				t.Errorf("a record without action or handle: %+v", r)
			}
			return nil
		})
	})
}
