package embedded

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/logstore"
)

// sampleValue returns a value that compresses about as well as real objects.
func sampleValue(i int) []byte {
	b := fmt.Appendf(nil,
		`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"object-%06d","uid":"%016x"}`,
		i, uint64(i+1)*0x9e3779b97f4a7c15)
	for j := 0; len(b) < 2000; j++ {
		b = fmt.Appendf(b, `,"field-%d":"%016x"`, j, (uint64(i)<<20+uint64(j)+1)*0xbf58476d1ce4e5b9)
	}
	return append(b, '}')
}

func sampleKey(i int) string {
	return fmt.Sprintf("stable.example.com/crontabs/default/object-%06d", i)
}

// fillStore creates n records, 100 in each commit.
func fillStore(tb testing.TB, s *logstore.Store, n int) {
	tb.Helper()
	for i := 0; i < n; {
		var writes []storage.Write
		for ; i < n && len(writes) < 100; i++ {
			writes = append(writes, storage.Write{Key: sampleKey(i), Value: sampleValue(i)})
		}
		if _, err := s.Commit(context.Background(), writes); err != nil {
			tb.Fatal(err)
		}
	}
}

// BenchmarkFdatasync measures the lower bound of a commit on disk: a write and fdatasync.
func BenchmarkFdatasync(b *testing.B) {
	f, err := os.Create(b.TempDir() + "/file")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	data := sampleValue(1)
	for b.Loop() {
		if _, err := f.Write(data); err != nil {
			b.Fatal(err)
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCommit measures updates of one of 10,000 records.
func BenchmarkCommit(b *testing.B) {
	for _, place := range []string{"memory", "disk"} {
		for _, writers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/writers=%d", place, writers), func(b *testing.B) {
				var o Options
				if place == "disk" {
					o.Dir = b.TempDir()
				}
				s := open(b, o)
				fillStore(b, s, 10000)
				benchmarkCommit(b, s, writers)
			})
		}
	}
}

func benchmarkCommit(b *testing.B, s *logstore.Store, writers int) {
	value := sampleValue(1)
	var number atomic.Int64
	b.ReportAllocs()
	b.SetParallelism((writers + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		own := int(number.Add(1)) * 100
		for i := 0; p.Next(); i++ {
			key := sampleKey(own + i%100)
			w := storage.Write{Key: key, Value: bytes.Clone(value), Expected: s.Head().Get(key).Modified}
			if _, err := s.Commit(context.Background(), []storage.Write{w}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkOpen measures the time to open a store with records, and the part of that time for the engine.
func BenchmarkOpen(b *testing.B) {
	for _, n := range []int{0, 10000} {
		dir := b.TempDir()
		s, err := Open(Options{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		fillStore(b, s, n)
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("records=%d/engine", n), func(b *testing.B) {
			for b.Loop() {
				l, err := openDisk(withDefaults(Options{Dir: dir}))
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := l.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
		b.Run(fmt.Sprintf("records=%d/whole", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s, err := Open(Options{Dir: dir})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkWatch measures a commit and its delivery to all cursors of its prefix, with 10,000 other cursors on other
// prefixes.
func BenchmarkWatch(b *testing.B) {
	for _, n := range []int{1, 100, 500} {
		b.Run(fmt.Sprintf("cursors=%d", n), func(b *testing.B) {
			s := open(b, Options{})
			for i := range 10000 {
				prefix := fmt.Sprintf("stable.example.com/crontabs/other-%d/", i)
				c, err := s.Watch(context.Background(), prefix, s.Head().Revision())
				if err != nil {
					b.Fatal(err)
				}
				defer c.Close()
			}
			var seen atomic.Int64
			var readers sync.WaitGroup
			for range n {
				c, err := s.Watch(context.Background(), "stable.example.com/crontabs/", s.Head().Revision())
				if err != nil {
					b.Fatal(err)
				}
				readers.Go(func() { drainCursor(c, &seen) })
			}
			b.ReportAllocs()
			value := sampleValue(1)
			for i := 0; b.Loop(); i++ {
				put(b, s, sampleKey(i%1000), string(value))
			}
			s.Close()
			readers.Wait()
			b.ReportMetric(float64(seen.Load())/float64(b.N), "events/op")
		})
	}
}

// drainCursor reads c until it ends.
func drainCursor(c *storage.Cursor, seen *atomic.Int64) {
	defer c.Close()
	var buf []*storage.Event
	for range c.Ready() {
		events, _, err := c.Take(buf[:0])
		seen.Add(int64(len(events)))
		if err != nil {
			return
		}
		buf = events
	}
}
