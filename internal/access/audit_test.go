package access

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	kjson "sigs.k8s.io/json"
)

func sample() *Record {
	began := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	return &Record{
		Attributes: Attributes{
			User: &user.DefaultInfo{Name: "jane", UID: "7", Groups: []string{"dev"}, Extra: map[string][]string{"a": {"b"}}},
			Verb: "get", Resource: true, Group: "example.com", Version: "v1beta1", Plural: "crontabs", Namespace: "default", Name: "c", Subresource: "status",
		},
		ID: "id", Stage: auditv1.StageResponseComplete, URI: "/apis/example.com/v1beta1/namespaces/default/crontabs/c/status?pretty=1", UserAgent: "old-client/1.0 \"x\"\n",
		As: &user.DefaultInfo{Name: "joe"}, SourceIPs: []string{"::1"}, Code: 404,
		Failure:  &metav1.Status{Status: "Failure", Reason: metav1.StatusReasonNotFound, Message: "gone"},
		Received: began, Now: began.Add(time.Millisecond), Deprecated: true, RemovedRelease: "1.22",
	}
}

// VER-006 VER-034: a line is an Event of audit.k8s.io/v1 that upstream's type reads without loss.
func TestRecordIsAnEvent(t *testing.T) {
	line, err := sample().encode()
	if err != nil || bytes.Count(line, []byte("\n")) != 1 {
		t.Fatalf("%s %v", line, err)
	}
	var e auditv1.Event
	if strict, err := kjson.UnmarshalStrict(line, &e); err != nil || len(strict) > 0 {
		t.Fatalf("%v %v", strict, err)
	}
	if e.Kind != "Event" || e.APIVersion != "audit.k8s.io/v1" || e.Level != auditv1.LevelMetadata || e.Stage != auditv1.StageResponseComplete ||
		e.User.Username != "jane" || e.User.Extra["a"][0] != "b" || e.ImpersonatedUser.Username != "joe" || e.UserAgent != "old-client/1.0 \"x\"\n" || e.Verb != "get" ||
		!strings.HasSuffix(e.RequestURI, "/c/status?pretty=1") || e.ResponseStatus.Code != 404 || e.ResponseStatus.Reason != metav1.StatusReasonNotFound ||
		e.Annotations["k8s.io/deprecated"] != "true" || e.Annotations["k8s.io/removed-release"] != "1.22" ||
		e.StageTimestamp.Sub(e.RequestReceivedTimestamp.Time) != time.Millisecond {
		t.Errorf("%s", line)
	}
	if o := e.ObjectRef; *o != (auditv1.ObjectReference{Resource: "crontabs", Namespace: "default", Name: "c", APIGroup: "example.com", APIVersion: "v1beta1", Subresource: "status"}) {
		t.Errorf("%+v", o)
	}
	// nobody, nothing of a kind, no answer
	line, err = (&Record{Stage: auditv1.StagePanic, UserAgent: strings.Repeat("x", 5000)}).encode()
	var bare auditv1.Event
	if strict, decodeErr := kjson.UnmarshalStrict(line, &bare); err != nil || decodeErr != nil || len(strict) > 0 {
		t.Fatalf("%v %v %v", err, decodeErr, strict)
	}
	if bare.ObjectRef != nil || bare.ResponseStatus != nil || bare.Annotations != nil || len(bare.UserAgent) > 1100 {
		t.Errorf("%s", line)
	}
}

// VER-006: what many requests say at once arrives whole, a line each, behind what the file had.
func TestAuditFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := OpenAudit(path, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				a.Record(sample())
			}
		})
	}
	all.Wait()
	if err := errors.Join(a.Close(), a.Close()); err != nil {
		t.Fatal(err)
	}
	a.Record(sample()) // too late, and harmless
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); n++ {
		var e auditv1.Event
		if _, err := kjson.UnmarshalStrict(lines.Bytes(), &e); err != nil {
			t.Fatalf("line %d: %v", n, err)
		}
	}
	if recorded, lost := a.Counts(); n != 1601 || recorded != 1600 || lost != 1 {
		t.Errorf("%d lines; %d recorded, %d lost", n, recorded, lost)
	}
}

// stuck is a disk that stands still until it is let go, and then fails.
type stuck struct{ entered, release chan struct{} }

func (s stuck) Write([]byte) (int, error) {
	s.entered <- struct{}{}
	<-s.release
	return 0, errors.New("no space")
}

// A disk that stands still costs memory up to a limit, and never a request's time.
func TestAuditOfAStuckDisk(t *testing.T) {
	disk := stuck{make(chan struct{}, 9), make(chan struct{})}
	told := make(chan error, 9)
	a := newAudit(disk, func() error { return nil }, func(err error) { told <- err })
	a.Record(sample())
	<-disk.entered
	a.mu.Lock()
	a.pending = make([]byte, maxBacklog-10)
	a.mu.Unlock()
	a.Record(sample())
	if recorded, lost := a.Counts(); recorded != 1 || lost != 1 {
		t.Errorf("%d recorded, %d lost", recorded, lost)
	}
	close(disk.release)
	if err := <-told; err == nil || err.Error() != "audit log: no space" {
		t.Error(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if _, lost := a.Counts(); lost < 2 {
		t.Errorf("%d lost", lost)
	}
}

func TestNoAudit(t *testing.T) {
	a, err := OpenAudit("", nil)
	if a != nil || err != nil || a.Close() != nil {
		t.Error(a, err)
	}
	if _, err := OpenAudit(t.TempDir(), nil); err == nil {
		t.Error("a folder was opened")
	}
}

// BenchmarkRecord is what a request pays for being recorded.
func BenchmarkRecord(b *testing.B) {
	a, err := OpenAudit(filepath.Join(b.TempDir(), "audit.log"), func(err error) { b.Error(err) })
	if err != nil {
		b.Fatal(err)
	}
	r := sample()
	r.Failure = nil
	b.ReportAllocs()
	for b.Loop() {
		a.Record(r)
	}
	b.StopTimer()
	if err := a.Close(); err != nil {
		b.Fatal(err)
	}
	_, lost := a.Counts()
	b.ReportMetric(float64(lost), "lost")
}
