package kinds_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/kinds"
)

// These are the objects that peers/load writes.
const (
	writtenPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a%d","labels":{"app":"load"}},"spec":{"automountServiceAccountToken":false,
"containers":[{"name":"c","image":"registry.example/app:1","resources":{"requests":{"cpu":"100m","memory":"64Mi"}},"env":[{"name":"A","value":"b"}]}]}}`
	writtenEvent = `{"apiVersion":"v1","kind":"Event","metadata":{"name":"a%d"},"involvedObject":{"kind":"Pod","namespace":"ns","name":"p"},
"reason":"Pulled","message":"the image is there","type":"Normal","count":1,"source":{"component":"kubelet","host":"m"},
"firstTimestamp":"2026-01-01T00:00:00Z","lastTimestamp":"2026-01-01T00:00:00Z"}`
	writtenLease = `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"a%d"},"spec":{"holderIdentity":"me","leaseDurationSeconds":40,
"renewTime":"2026-01-01T00:00:00.%06dZ","leaseTransitions":1}}`
	patchedStatus = `{"status":{"phase":"Running","podIP":"10.1.1.1","conditions":[{"type":"Ready","status":"True","message":"%d"}]}}`
)

// BenchmarkCreateBuiltin measures creates, including the decoding of bodies.
func BenchmarkCreateBuiltin(b *testing.B) {
	c := serveCluster(b, kinds.Config{})
	for _, k := range []struct{ apiVersion, kind, body string }{
		{"v1", "Pod", writtenPod},
		{"v1", "Event", writtenEvent},
		{"v1", "ConfigMap", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a%d"},"data":{"a":"b","c":"` +
			strings.Repeat("d", 500) + `"}}`},
	} {
		v, n := c.version(k.apiVersion, k.kind), 0
		b.Run(k.kind, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n++
				d, err := v.Type.Decode(fmt.Appendf(nil, k.body, n))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := c.Engine.Create(b.Context(), c.at(v, "", ""),
					verb.Body{Tree: d.Tree, Internal: d.Internal, Strict: d.Strict, Typed: true},
					c.by()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPatchBuiltin measures the patches that kubelets send most often.
func BenchmarkPatchBuiltin(b *testing.B) {
	c := serveCluster(b, kinds.Config{})
	for _, k := range []struct {
		apiVersion, kind, sub, made string
		patch                       verb.Patch
		change                      func(n int) string
	}{
		{"v1", "Pod", "status", fmt.Sprintf(writtenPod, 0), verb.Patch{Type: types.StrategicMergePatchType},
			func(n int) string { return fmt.Sprintf(patchedStatus, n) }},
		{"coordination.k8s.io/v1", "Lease", "", fmt.Sprintf(writtenLease, 0, 0),
			verb.Patch{Type: types.MergePatchType}, func(n int) string {
				return fmt.Sprintf(writtenLease, 0, n%1e6)
			}},
	} {
		v, n := c.version(k.apiVersion, k.kind), 0
		c.mustCreate(v, "a0", k.made)
		b.Run(k.kind+k.sub, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n++
				p := k.patch
				p.Data = []byte(k.change(n))
				if _, _, err := c.Engine.Patch(b.Context(), c.at(v, "a0", k.sub), p, c.by()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
