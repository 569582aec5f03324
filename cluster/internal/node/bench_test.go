package node

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BenchmarkPod measures the time from the creation of a bound Pod with a token volume until it is Running. The
// containers of the fake runtime start immediately. BenchmarkPod also reports the anonymous memory of the node's
// process.
func BenchmarkPod(b *testing.B) {
	f := newFixture(b)
	p := f.start(f.options("bench"))
	f.readyNode("bench")
	f.createPod("bench", "first")
	f.runningPod("first")
	pods := f.kube.CoreV1().Pods("default")
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprintf("pod-%d", i)
		changes, err := pods.Watch(b.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			b.Fatal(err)
		}
		f.createPod("bench", name)
		for e := range changes.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok && pod.Status.Phase == corev1.PodRunning {
				break
			}
		}
		changes.Stop()
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "RssAnon: %f kB", &kib); n == 1 {
			b.ReportMetric(kib/1024, "MiB-anonymous")
		}
	}
}
