package api

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/trellis-k8s/trellis/internal/access"
)

// serveTLS starts a server with HTTPS and HTTP/2, and returns a client and the URL of the server.
func serveTLS(b *testing.B, handler http.Handler) (*http.Client, string) {
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	b.Cleanup(server.Close)
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "example.com"},
		ForceAttemptHTTP2: true, DisableCompression: true}
	b.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}, server.URL
}

// asAdmin adds the identity of an administrator to each request, because the client has no certificate.
func asAdmin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(access.WithUser(r.Context(), access.Loopback())))
	})
}

// staticHandler returns a handler that always writes body. A benchmark of the handler measures the cost of Go's
// HTTP server.
func staticHandler(body []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		for rest := body; len(rest) > 0; {
			n := min(len(rest), 256<<10)
			if _, err := w.Write(rest[:n]); err != nil {
				return
			}
			rest = rest[n:]
		}
	})
}

// cpuTime returns the processor time that this process has used. This includes the time of the client.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure runs GET requests and reports the processor time per request, in addition to the duration.
func measure(b *testing.B, client *http.Client, url string, headers ...string) {
	b.Helper()
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		b.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	get := func() int64 {
		resp, err := client.Do(r)
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		n, err := io.Copy(io.Discard, resp.Body)
		if err != nil || resp.StatusCode != 200 {
			b.Fatal(resp.StatusCode, err)
		}
		return n
	}
	b.SetBytes(get())
	b.ReportAllocs()
	began := cpuTime()
	for b.Loop() {
		get()
	}
	b.ReportMetric(float64((cpuTime()-began).Microseconds())/float64(b.N), "cpu-µs/op")
}

// fill stores n objects of about 1.9 KB.
func (h *harness) fill(n int) {
	h.t.Helper()
	text := rand.String(1300)
	for i := range n {
		h.want(201, "POST", crontabs+"?fieldManager=bench", fmt.Sprintf(
			`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"cron-%05d",`+
				`"labels":{"app":"x","shard":"%d"}},"spec":{"cronSpec":"* * * * */5","image":%q,"replicas":%d}}`,
			i, i%100, text, i))
	}
}

// BenchmarkGet compares a GET with a handler that writes the same bytes from memory.
func BenchmarkGet(b *testing.B) {
	h := withCronTabs(b)
	h.fill(1)
	path := crontabs + "/cron-00000"
	h.do("GET", path, "")
	b.Run("server", func(b *testing.B) {
		client, url := serveTLS(b, asAdmin(h.server))
		measure(b, client, url+path)
	})
	b.Run("null", func(b *testing.B) {
		client, url := serveTLS(b, staticHandler(h.do("GET", path, "").Body.Bytes()))
		measure(b, client, url+path)
	})
	b.Run("handler", func(b *testing.B) {
		r := newRequest("GET", path, "")
		b.ReportAllocs()
		for b.Loop() {
			h.server.ServeHTTP(&discardWriter{header: http.Header{}}, r)
		}
	})
}

// BenchmarkGetByCaller compares a GET by an administrator with a GET by another user. It excludes the cost of Go's HTTP
// server.
func BenchmarkGetByCaller(b *testing.B) {
	h, admin, reader := withCallers(b)
	h.fill(1)
	for form, accept := range map[string]string{"json": "", "table": kubectlAccept} {
		for name, user := range map[string]*caller{"admin": admin, "reader": reader} {
			b.Run(form+"/"+name, func(b *testing.B) {
				r := user.get(crontabs+"/cron-00000", accept)
				b.ReportAllocs()
				for b.Loop() {
					h.server.ServeHTTP(&discardWriter{header: http.Header{}}, r)
				}
			})
		}
	}
}

// discardWriter is a ResponseWriter that discards the body.
type discardWriter struct{ header http.Header }

func (d *discardWriter) Header() http.Header         { return d.header }
func (d *discardWriter) Write(p []byte) (int, error) { return len(p), nil }
func (d *discardWriter) WriteHeader(int)             {}

// BenchmarkList compares a list of 10,000 objects with a handler that writes the same bytes. It also measures lists
// with gzip, with a selector, as a Table and as metadata only.
func BenchmarkList(b *testing.B) {
	h := withCronTabs(b)
	h.fill(10_000)
	client, url := serveTLS(b, asAdmin(h.server))
	b.Run("server", func(b *testing.B) { measure(b, client, url+crontabs) })
	b.Run("null", func(b *testing.B) {
		client, url := serveTLS(b, staticHandler(h.do("GET", crontabs, "").Body.Bytes()))
		measure(b, client, url+crontabs)
	})
	b.Run("gzip", func(b *testing.B) { measure(b, client, url+crontabs, "Accept-Encoding: gzip") })
	b.Run("selector", func(b *testing.B) { measure(b, client, url+crontabs+"?labelSelector=shard%3D7") })
	b.Run("table", func(b *testing.B) {
		measure(b, client, url+crontabs, "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
	})
	b.Run("metadata", func(b *testing.B) {
		measure(b, client, url+crontabs, "Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
	})
}

// BenchmarkCreate measures the dry run of creating a Pod with three containers, as JSON and as protobuf.
func BenchmarkCreate(b *testing.B) {
	h := newHarness(b)
	const path = "/api/v1/namespaces/default/pods"
	const container = `{"name":"c%d","image":"registry.example/image:1.2","env":[{"name":"A","value":"b"},` +
		`{"name":"B","value":"c"}],"ports":[{"containerPort":80}],"resources":{"limits":{"cpu":"1","memory":"1Gi"}}},`
	js := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"app":"b"}},"spec":{"containers":[` +
		strings.TrimSuffix(strings.Repeat(container, 3), ",") + `]}}`
	js = fmt.Sprintf(js, 1, 2, 3)
	message := h.want(http.StatusCreated, "POST", path+"?dryRun=All", js, "Content-Type: "+runtime.ContentTypeJSON,
		"Accept: "+runtime.ContentTypeProtobuf).Body.String()
	for _, c := range []struct{ name, body, as string }{
		{"JSON", js, runtime.ContentTypeJSON}, {"protobuf", message, runtime.ContentTypeProtobuf},
	} {
		b.Run(c.name, func(b *testing.B) {
			began := cpuTime()
			for b.Loop() {
				h.server.ServeHTTP(&discardWriter{header: http.Header{}},
					newRequest("POST", path+"?dryRun=All", c.body, "Content-Type: "+c.as))
			}
			b.ReportMetric(float64((cpuTime()-began).Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
		})
	}
}
