package controllers_test

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/testserver"
)

// usage returns the size of the heap and stacks, the number of goroutines, and the CPU time of the process.
func usage() (heap float64, goroutines float64, cpu time.Duration) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return float64(m.HeapInuse + m.StackInuse), float64(runtime.NumGoroutine()),
		time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// awaitIdle waits until the number of goroutines stays constant. Every kind is then watched.
func awaitIdle() {
	for last, same := 0, 0; same < 20; {
		n := runtime.NumGoroutine()
		if n == last {
			same++
		} else {
			last, same = n, 0
		}
		<-time.After(50 * time.Millisecond)
	}
}

// BenchmarkWatchCRD measures the cost of a CRD in an idle server with its controllers. It reports the bytes of heap
// and stack, the number of goroutines, the CPU time until the kind is watched, and the CPU time per second while the
// server is idle.
func BenchmarkWatchCRD(b *testing.B) {
	for _, count := range []int{300} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			s := testserver.Start(b)
			c := connect(b, s)
			awaitIdle()
			heap, goroutines, cpu := usage()
			for i := range count {
				c.crd(b, fmt.Sprintf("g%d.example.com", i), fmt.Sprintf("Thing%d", i), "Namespaced")
			}
			awaitIdle()
			after, goroutinesAfter, cpuAfter := usage()
			idle := time.Now()
			for time.Since(idle) < 2*time.Second {
				<-time.After(100 * time.Millisecond)
			}
			_, _, end := usage()
			n := float64(count)
			b.ReportMetric((after-heap)/n, "B/crd")
			b.ReportMetric((goroutinesAfter-goroutines)/n, "goroutines/crd")
			b.ReportMetric(float64((cpuAfter-cpu).Microseconds())/n, "µs-cpu/crd")
			b.ReportMetric(float64((end-cpuAfter).Microseconds())/2, "µs-cpu/idle-s")
		})
	}
}

// BenchmarkCreateWatched measures the creation of objects of a kind that the controllers watch.
func BenchmarkCreateWatched(b *testing.B) {
	for _, owned := range []bool{false, true} {
		b.Run(fmt.Sprintf("owned=%v", owned), func(b *testing.B) {
			s := testserver.Start(b)
			c := connect(b, s)
			gvr := c.crd(b, "example.com", "Widget", "Namespaced")
			var owners []metav1.OwnerReference
			if owned {
				owner := c.create(b, configMaps, "default", object("ConfigMap", "v1", "owner"))
				owners = append(owners, reference(owner, false))
			}
			awaitIdle()
			ctx := context.Background()
			b.ReportAllocs()
			_, _, cpu := usage()
			for i := 0; b.Loop(); i++ {
				o := object("Widget", "example.com/v1", fmt.Sprintf("w%d", i))
				o.SetOwnerReferences(owners)
				if _, err := c.dynamic.Resource(gvr).Namespace("default").Create(
					ctx, o, metav1.CreateOptions{},
				); err != nil {
					b.Fatal(err)
				}
			}
			_, _, end := usage()
			b.ReportMetric(float64((end-cpu).Microseconds())/float64(b.N), "µs-cpu/op")
		})
	}
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
