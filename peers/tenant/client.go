package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Namespaces of the two tenants.
const (
	attackerNamespace = "attacker"
	victimNamespace   = "victim"
)

// rate is the number of objects that the victim creates per second.
const rate = 40

// bearer adds a token to each request.
type bearer struct {
	http.RoundTripper
	token string
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.RoundTripper.RoundTrip(r)
}

// clientOf returns an HTTP/2 client that authenticates by a token. It does not verify the certificates of the servers,
// which listen on the loopback interface and sign their own certificates.
func clientOf(token string) *http.Client {
	t := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	return &http.Client{Transport: bearer{t, token}}
}

// do sends a request and returns the status code and the body of the response.
func do(ctx context.Context, c *http.Client, method, url, contentType string, body []byte) (int, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Accept", accept(contentType))
	resp, err := c.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	return resp.StatusCode, out, err
}

// accept returns the media type to request for the response: YAML for a YAML request, JSON for all others.
func accept(contentType string) string {
	if contentType == yamlType {
		return yamlType
	}
	return jsonType
}

// prepare creates the namespaces with their ServiceAccounts, the rights of the users, and the objects that attacks read
// and patch.
func prepare(host string) {
	c, base := clientOf("admin"), "https://"+host
	post := func(path, body string) {
		code, out, err := do(context.Background(), c, "POST", base+path, "application/json", []byte(body))
		check(err)
		if code >= 300 && code != http.StatusConflict {
			log.Fatalf("create at %s: %d %s", path, code, out)
		}
	}
	// The default ClusterRole edit cannot be used. A controller adds its rules, but kube-apiserver does not run this
	// controller.
	post("/apis/rbac.authorization.k8s.io/v1/clusterroles",
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"tenant"},`+
			`"rules":[{"apiGroups":["","apps"],"resources":["configmaps","pods","deployments"],"verbs":["*"]}]}`)
	for _, tenant := range []string{attackerNamespace, victimNamespace} {
		post("/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+tenant+`"}}`)
		post("/api/v1/namespaces/"+tenant+"/serviceaccounts",
			`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}`)
		post("/apis/rbac.authorization.k8s.io/v1/namespaces/"+tenant+"/rolebindings",
			`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding",`+
				`"metadata":{"name":"tenant"},`+
				`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"tenant"},`+
				`"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"`+tenant+`"}]}`)
	}
	for path, body := range prepared() {
		post(path, body)
	}
	post("/api/v1/namespaces/"+victimNamespace+"/configmaps", configMap("first"))
}

func configMap(name string) string {
	return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"},"data":{"a":"b","c":"` +
		string(bytes.Repeat([]byte("d"), 500)) + `"}}`
}

// result holds the measurement of the victim's requests. The latency of a request starts at the time at which it was
// due, and is in milliseconds.
type result struct {
	mu           sync.Mutex
	done, failed int
	latencies    []float64
}

// create creates ConfigMaps as the victim for the duration d. The rate is constant and does not depend on the server's
// latency. A request that fails or takes longer than 30 seconds counts as failed.
func create(ctx context.Context, host string, d time.Duration) *result {
	r, c := &result{}, clientOf("victim")
	var all sync.WaitGroup
	start := time.Now()
	for n := 0; time.Since(start) < d; n++ {
		due := start.Add(time.Duration(n) * time.Second / rate)
		pause(ctx, time.Until(due))
		all.Go(func() {
			ctx, stop := context.WithTimeout(ctx, 30*time.Second)
			defer stop()
			code, _, err := do(ctx, c, "POST", "https://"+host+"/api/v1/namespaces/"+victimNamespace+"/configmaps",
				"application/json",
				[]byte(configMap(fmt.Sprintf("m-%d", n))))
			r.add(err == nil && code == http.StatusCreated, time.Since(due))
		})
	}
	all.Wait()
	return r
}

func (r *result) add(ok bool, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done++
	if !ok {
		r.failed++
	}
	r.latencies = append(r.latencies, took.Seconds()*1000)
}

// quantile returns the q-quantile of the latencies.
func (r *result) quantile(q float64) float64 {
	if len(r.latencies) == 0 {
		return 0
	}
	slices.Sort(r.latencies)
	return r.latencies[min(int(q*float64(len(r.latencies))), len(r.latencies)-1)]
}
